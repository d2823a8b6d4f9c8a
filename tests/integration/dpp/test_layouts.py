"""MegaDPP trains bit for bit as megatron-core's schedules do, in any order: pairwise over layouts and settings."""

from __future__ import annotations

from functools import partial
from itertools import combinations, product

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.forked import run_forked
from tests.support.marks import some
from tests.support.varied_orders import StockUnderDpp, Varied, assert_bitwise_alike, trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 20
STAGES, CHUNKS, SPLITS = (2, 4), (1, 2), (True, False)
TENSOR = {
    "TP 1": (1, ""),
    "TP 2": (2, "--tensor-model-parallel-size 2"),
    "TP 2, sequence parallel": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
}
DATA = {
    "DP 1": (1, ""),
    "DP 2": (2, ""),
    "DP 2, overlap": (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
}
VARIANTS = {
    "plain": "",
    "dropout": "--hidden-dropout 0.1 --attention-dropout 0.1",
    "recompute, untied": "--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
    "--untie-embeddings-and-output-weights",
    "experts": "--num-experts 2 --disable-bias-linear --moe-aux-loss-coeff 0.01",
}
Case = tuple[int, int, str, str, str, bool]
"""(pipeline, chunks, tensor, data, variant, W split from B)."""
COVER: list[Case] = [
    (2, 1, "TP 1", "DP 2", "dropout", True),
    (2, 1, "TP 2, sequence parallel", "DP 2, overlap", "experts", True),
    (2, 1, "TP 2", "DP 2", "recompute, untied", True),
    (2, 2, "TP 1", "DP 1", "experts", True),
    (2, 2, "TP 1", "DP 2, overlap", "plain", True),
    (2, 2, "TP 2, sequence parallel", "DP 2", "plain", False),
    (2, 2, "TP 2", "DP 2, overlap", "dropout", False),
    (4, 1, "TP 1", "DP 2, overlap", "recompute, untied", False),
    (4, 1, "TP 1", "DP 2", "experts", False),
    (4, 1, "TP 2, sequence parallel", "DP 1", "dropout", True),
    (4, 1, "TP 2", "DP 1", "plain", True),
    (4, 2, "TP 2, sequence parallel", "DP 1", "recompute, untied", False),
]


def ranks_of(case: Case) -> int:
    return case[0] * TENSOR[case[2]][0] * DATA[case[3]][0]


def possible(case: Case) -> bool:
    """At most eight ranks; experts need sequence parallelism beside tensor parallelism."""
    return ranks_of(case) <= 8 and (case[2], case[4]) != ("TP 2", "experts")


def pairs_of(case: Case) -> set[tuple[tuple[int, object], ...]]:
    return set(combinations(enumerate(case), 2))


def flags_of(case: Case) -> str:
    pipeline, chunks, tensor, data, variant, split = case
    experts = f"--expert-model-parallel-size {DATA[data][0]}" if variant == "experts" else ""
    virtual = f"--num-virtual-stages-per-pipeline-rank {chunks}" if chunks > 1 else ""
    return (
        f"--num-layers 8 --global-batch-size {8 * DATA[data][0]} "
        f"--pipeline-model-parallel-size {pipeline} {virtual} {TENSOR[tensor][1]} {DATA[data][1]} "
        f"{VARIANTS[variant]} {experts} --use-dpp --dpp-policy interleaved {'' if split else '--dpp-no-split'}"
    )


def test_the_cover_has_every_pair_that_is_possible() -> None:
    every = filter(possible, product(STAGES, CHUNKS, TENSOR, DATA, VARIANTS, SPLITS))

    assert set().union(*map(pairs_of, every)) == set().union(*map(pairs_of, COVER))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    some(COVER, lambda case: COVER.index(case) % 3 == 0),
    ids=lambda each: "PP {} × VPP {} × {} × {}, {}, split {}".format(*each),
)
def test_losses_and_gradients_are_bitwise_stocks_in_every_order(case: Case) -> None:
    assert_bitwise_stocks(case, flags_of(case))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_losses_and_gradients_of_experts_in_one_kernel_are_bitwise_stocks() -> None:
    case: Case = (2, 2, "TP 1", "DP 1", "experts", True)

    assert_bitwise_stocks(case, f"{flags_of(case)} --moe-grouped-gemm")


def assert_bitwise_stocks(case: Case, flags: str) -> None:
    run = partial(trained, steps=STEPS)

    stock = run_forked(ranks_of(case), run, flags, StockUnderDpp, timeout=400)
    chosen = run_forked(ranks_of(case), run, flags, Varied, timeout=400)

    assert_bitwise_alike(chosen, stock, case[1], STEPS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_losses_and_gradients_of_four_stages_with_four_chunks_are_bitwise_stocks() -> None:
    case: Case = (4, 4, "TP 1", "DP 1", "plain", True)

    assert_bitwise_stocks(case, f"{flags_of(case)} --num-layers 16")
