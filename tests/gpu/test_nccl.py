"""The same losses on GPUs: every layout on NCCL, and bit for bit with tracing on and off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.scan import ScanPlugin
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


ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""Without these cuBLAS and NCCL may sum in another order from run to run."""


def losses(flags: str, world_size: int = 2, plugins: tuple[type, ...] = ()) -> list[float]:
    model = f"{TINY} --train-iters {STEPS} --deterministic-mode {flags}"
    return run_forked(world_size, _train, model, plugins, timeout=240, environment=ENVIRONMENT)[-1]


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
        "--tensor-model-parallel-size 2 --sequence-parallel",
        "--use-distributed-optimizer",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 10000",
    ],
)
def test_layout_has_the_losses_of_one_gpu(layout: str, one_gpu: list[float]) -> None:
    found = losses(layout)

    assert len(found) == STEPS
    assert found == pytest.approx(one_gpu, rel=1e-5)


def test_interleaving_has_the_losses_of_the_plain_pipeline() -> None:
    assert losses(INTERLEAVED) == pytest.approx(losses(PIPELINE), rel=1e-5)


@pytest.mark.parametrize("layout", [PIPELINE, INTERLEAVED, "--tensor-model-parallel-size 2", ""])
@pytest.mark.parametrize("granularity", ["base", "full"])
def test_tracing_changes_no_bit(layout: str, granularity: str, tmp_path: Path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-granularity {granularity} --trace-interval 2"

    assert losses(f"--bf16 {layout} {trace}", plugins=(ScanPlugin,)) == losses(f"--bf16 {layout}")
