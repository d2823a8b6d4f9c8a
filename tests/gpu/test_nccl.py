"""The same losses on GPUs: every layout on NCCL, and bit for bit with tracing on and off."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from tests.support.forked import run_forked
from tests.support.training import TINY, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA devices"),
]

STEPS = 20
PIPELINE = "--pipeline-model-parallel-size 2"
INTERLEAVED = f"{PIPELINE} --num-layers-per-virtual-pipeline-stage 1"


DATA_PARALLEL = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 10000"
TENSOR = "--tensor-model-parallel-size 2 --sequence-parallel"
ON_FOUR = {
    "PP 4": "--pipeline-model-parallel-size 4",
    "TP 4": "--tensor-model-parallel-size 4 --sequence-parallel",
    "DP 4": DATA_PARALLEL,
    "PP 2 x VPP 2 x DP 2": f"{INTERLEAVED} {DATA_PARALLEL}",
    "TP 2 x PP 2 x VPP 2": f"{TENSOR} {INTERLEAVED}",
    "TP 2 x DP 2": f"{TENSOR} {DATA_PARALLEL}",
}
four_gpus = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs 4 CUDA devices")

ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Without these cuBLAS and NCCL may sum in another order from run to run."""


def losses(flags: str, world_size: int = 2, plugins: tuple[type, ...] = ()) -> list[float]:
    model = f"{TINY} --train-iters {STEPS} --deterministic-mode {flags}"
    return run_forked(world_size, _train, model, plugins, timeout=240, environment=ENVIRONMENT)[-1]


@cache
def stock(flags: str, world_size: int = 2) -> list[float]:
    return losses(f"--bf16 {flags}", world_size)


def _train(model: str, plugins: tuple[type, ...]) -> list[float]:
    return train(model, plugins=plugins).losses


@pytest.fixture(scope="module")
def one_gpu() -> list[float]:
    return losses("", world_size=1)


@pytest.mark.parametrize(
    "layout",
    [
        PIPELINE,
        INTERLEAVED,
        f"{INTERLEAVED} --no-overlap-p2p-communication",
        "--tensor-model-parallel-size 2",
        TENSOR,
        "--use-distributed-optimizer",
        DATA_PARALLEL,
    ],
)
def test_layout_has_the_losses_of_one_gpu(layout: str, one_gpu: list[float]) -> None:
    found = losses(layout)

    assert len(found) == STEPS
    assert found == pytest.approx(one_gpu, rel=1e-5)


@four_gpus
@pytest.mark.parametrize("layout", ON_FOUR)
def test_layout_of_four_has_the_losses_of_one_gpu(layout: str, one_gpu: list[float]) -> None:
    assert losses(ON_FOUR[layout], world_size=4) == pytest.approx(one_gpu, rel=1e-5)


def test_interleaving_has_the_losses_of_the_plain_pipeline() -> None:
    assert losses(INTERLEAVED) == pytest.approx(losses(PIPELINE), rel=1e-5)


@pytest.mark.parametrize("layout", [PIPELINE, INTERLEAVED, "--tensor-model-parallel-size 2", ""])
@pytest.mark.parametrize("granularity", ["base", "full"])
def test_tracing_changes_no_bit(layout: str, granularity: str, tmp_path: Path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-granularity {granularity} --trace-interval 2"

    assert losses(f"--bf16 {layout} {trace}", plugins=(ScanPlugin,)) == stock(layout)


@four_gpus
@pytest.mark.parametrize("layout", ON_FOUR)
def test_no_plugin_changes_a_bit(layout: str, tmp_path: Path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-granularity full --trace-interval 2"

    watched = losses(
        f"--bf16 {ON_FOUR[layout]} {trace} --nccl-trace --scope",
        world_size=4,
        plugins=(ScanPlugin, MegatracePlugin, ScopePlugin),
    )

    assert watched == stock(ON_FOUR[layout], world_size=4)


@four_gpus
@pytest.mark.parametrize("layout", [each for each in ON_FOUR if "PP" in each])
def test_a_dynamic_pipeline_changes_no_bit_beside_the_other_plugins(layout: str, tmp_path: Path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-granularity full --trace-interval 2"

    planned = losses(
        f"--bf16 {ON_FOUR[layout]} {trace} --nccl-trace --scope --use-dpp --dpp-policy interleaved",
        world_size=4,
        plugins=(DppPlugin, ScanPlugin, MegatracePlugin, ScopePlugin),
    )

    assert planned == stock(ON_FOUR[layout], world_size=4)
