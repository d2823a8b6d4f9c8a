"""MegaDPP on GPUs, in bf16: bit for bit what megatron-core's schedule over NCCL computes, in every order.

Can be rehearsed on CPU ranks (devices.py), over gloo.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.gpu.devices import needs
from tests.gpu.test_nccl import ENVIRONMENT
from tests.gpu.worlds import Worlds
from tests.support.delayed import Delayed
from tests.support.training import TINY
from tests.support.varied_orders import Trained, Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(150),
    needs(2),
]

MODEL = f"{TINY} --num-layers 8 --hidden-size 256 --seq-length 128 --global-batch-size 16 --bf16 --deterministic-mode"
DPP = "--use-dpp --dpp-policy interleaved-zb"
CHUNKS = 2
VIRTUAL = f"--num-virtual-stages-per-pipeline-rank {CHUNKS}"
TWO = f"--pipeline-model-parallel-size 2 {VIRTUAL}"
LAYOUTS = [
    pytest.param(2, TWO, id="PP 2 × VPP 2"),
    pytest.param(4, f"--pipeline-model-parallel-size 4 {VIRTUAL}", marks=needs(4), id="PP 4 × VPP 2"),
    pytest.param(
        4, f"{TWO} --tensor-model-parallel-size 2 --sequence-parallel", marks=needs(4), id="PP 2 × VPP 2 × TP 2"
    ),
]
WORLDS = Worlds(ENVIRONMENT)


@pytest.fixture(scope="module", autouse=True)
def _worlds_end() -> Iterator[None]:
    yield
    WORLDS.close()


@cache
def run(ranks: int, flags: str, *plugins: type) -> list[Trained]:
    return WORLDS.call(ranks, partial(trained, model=MODEL), flags, *plugins)


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
