"""MegaDPP on GPUs, in bf16: bit for bit what megatron-core's schedule over NCCL computes, in every order."""

from __future__ import annotations

import os
from functools import partial

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.gpu.test_nccl import ENVIRONMENT
from tests.support.delayed import Delayed
from tests.support.forked import run_forked
from tests.support.training import TINY
from tests.support.varied_orders import Trained, Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA devices"),
]

MODEL = f"{TINY} --num-layers 8 --hidden-size 256 --seq-length 128 --global-batch-size 16 --bf16 --deterministic-mode"
DPP = "--use-dpp --dpp-policy interleaved"
CHUNKS = 2
VIRTUAL = f"--num-virtual-stages-per-pipeline-rank {CHUNKS}"
TWO = f"--pipeline-model-parallel-size 2 {VIRTUAL}"
LAYOUTS = [
    pytest.param(2, TWO, id="PP 2 × VPP 2"),
    pytest.param(4, f"--pipeline-model-parallel-size 4 {VIRTUAL}", id="PP 4 × VPP 2"),
    pytest.param(4, f"{TWO} --tensor-model-parallel-size 2 --sequence-parallel", id="PP 2 × VPP 2 × TP 2"),
]


def run(ranks: int, flags: str, *plugins: type) -> list[Trained]:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    train = partial(trained, model=MODEL)
    return run_forked(ranks, train, flags, *plugins, timeout=140, environment=ENVIRONMENT)


@pytest.mark.parametrize(("ranks", "flags"), LAYOUTS)
def test_losses_gradients_and_weights_are_stocks_in_every_order(ranks: int, flags: str) -> None:
    stock = run(ranks, flags)

    chosen = run(ranks, f"{flags} {DPP}", Varied)

    assert_bitwise_alike(chosen, stock, CHUNKS)


def test_operations_and_messages_that_come_late_change_nothing() -> None:
    stock = run(2, TWO)

    delayed = run(2, f"{TWO} {DPP}", Delayed)

    assert [each.losses for each in delayed] == [each.losses for each in stock]
    assert [each.gradients for each in delayed] == [each.gradients for each in stock]
