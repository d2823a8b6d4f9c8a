"""MegaDPP trains bit for bit as megatron-core's schedules do, in any order. test_layouts.py has all of them."""

from __future__ import annotations

from functools import partial

import pytest

from megatronapp.core.pipeline.caps import peak
from megatronapp.core.pipeline.operations import Kind
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin
from tests.support.forked import run_forked
from tests.support.marks import briefly
from tests.support.varied_orders import Counting, StockUnderDpp, Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 20
DPP = "--use-dpp --dpp-policy interleaved-zb"
TWO = "--global-batch-size 16 --pipeline-model-parallel-size 2"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank 2"
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
RECOMPUTE = "--recompute-granularity full --recompute-method block --recompute-num-layers 1"
OVERLAP = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
LAYOUTS = [
    pytest.param(
        4,
        2,
        f"{TWO} {VIRTUAL} --tensor-model-parallel-size 2 --sequence-parallel {DROPOUT} {RECOMPUTE} "
        "--untie-embeddings-and-output-weights",
        id="PP 2 × VPP 2 × TP 2, sequence parallel, dropout, recompute, untied",
        marks=pytest.mark.long,
    ),
    pytest.param(
        4,
        2,
        f"{TWO} {VIRTUAL} {OVERLAP} --eval-interval 4 --eval-iters 1",
        id="PP 2 × VPP 2 × DP 2, overlap, evaluations",
    ),
    pytest.param(
        2,
        4,
        f"{TWO} --num-layers 8 --num-virtual-stages-per-pipeline-rank 4",
        id="PP 2 × VPP 4",
    ),
    pytest.param(
        2,
        2,
        f"{TWO} {VIRTUAL} --num-layers 6 --decoder-first-pipeline-num-layers 4",
        id="PP 2 × VPP 2, four layers and two",
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("policy", "cap", "steps"), briefly([pytest.param("zb-h1", 2, marks=pytest.mark.long), ("zb-h2", 3)], 3, STEPS)
)
def test_with_w_split_from_b_they_are_bitwise_stocks(policy: str, cap: int, steps: int) -> None:
    flags = "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --geglu"
    run = partial(trained, steps=steps)

    stock = run_forked(4, run, flags)
    chosen = run_forked(4, run, f"{flags} --use-dpp --dpp-policy {policy}", Counting)

    assert [each.losses for each in chosen] == [each.losses for each in stock]
    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    orders = [order for each in chosen for order in each.orders]
    assert [sum(operation.kind is Kind.WGRAD for operation in order) for order in orders] == [4] * (4 * steps)
    assert max(map(peak, orders)) <= cap


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "chunks", "flags"), LAYOUTS)
def test_losses_and_gradients_are_bitwise_stocks_in_every_order(ranks: int, chunks: int, flags: str) -> None:
    stock: tuple[type[Plugin], ...] = ()
    if DROPOUT in flags:  # the same draws
        stock = (StockUnderDpp,)

    expected = run_forked(ranks, trained, f"{flags} {DPP if stock else ''}", *stock, timeout=180)
    chosen = run_forked(ranks, trained, f"{flags} {DPP}", Varied, timeout=180)

    assert_bitwise_alike(chosen, expected, chunks)
