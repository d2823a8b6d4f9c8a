"""What each expert makes of its tokens, put together over ranks, is all that the MLP adds."""

from __future__ import annotations

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.expert_outputs import (
    ACTIVATIONS,
    MOE,
    STEPS,
    assert_add_up,
    assert_products_add_up,
    shown_step,
)
from tests.support.forked import run_forked
from tests.support.scoped_job import run_plain, scoped_job
from tests.support.training import TINY

slower = pytest.mark.long
EXPERTS_2 = "--expert-model-parallel-size 2"
TENSORS_2 = "--tensor-model-parallel-size 2 --sequence-parallel"


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        pytest.param(1, "", marks=slower),
        (2, EXPERTS_2),
        pytest.param(2, "", marks=slower),  # two replicas, each of which has all experts
        pytest.param(4, EXPERTS_2, marks=slower),
        pytest.param(2, f"{EXPERTS_2} --moe-grouped-gemm", marks=slower),
    ],
)
def test_what_experts_add_is_together_what_the_mlp_adds(
    ranks: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = f"{MOE} {layout}"

    [experts, mlp, load], losses = shown_step(ranks, flags, monkeypatch, replicas=ranks)

    assert_add_up(experts, mlp, load)
    assert losses == run_forked(ranks, run_plain, f"{TINY} --train-iters {STEPS} {flags}")[-1]


@pytest.mark.parametrize(
    ("ranks", "layout", "replicas"),
    [
        (1, "--swiglu --moe-ffn-hidden-size 24", 1),
        (2, f"{EXPERTS_2} --moe-grouped-gemm", 2),
        (2, TENSORS_2, 1),
        pytest.param(2, EXPERTS_2, 2, marks=slower),
        pytest.param(1, "--moe-grouped-gemm", 1, marks=slower),
        pytest.param(2, "", 2, marks=slower),
        pytest.param(4, f"{TENSORS_2} {EXPERTS_2}", 2, marks=slower),
    ],
)
def test_activations_of_experts_give_through_their_second_matrices_what_the_mlp_adds(
    ranks: int, layout: str, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = f"{MOE} {layout}"

    found, losses = shown_step(ranks, flags, monkeypatch, sites=ACTIVATIONS, replicas=replicas)

    assert_products_add_up(*found)
    assert losses == run_forked(ranks, run_plain, f"{TINY} --train-iters {STEPS} {flags}")[-1]


def test_experts_whose_sums_alone_a_rank_has_are_no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallelism under the dispatcher that adds up over ranks and experts at once."""
    layout = f"{MOE} {TENSORS_2}"
    with scoped_job(2, layout, monkeypatch, steps=STEPS) as job:
        job.paused_before()
        sites = {site.name for site in job.gateway.hellos[0].sites}
        job.gateway.train("resume", 0, job.ranks, "resume")
        job.done()

    assert "router.load" in sites
    assert "experts.out" not in sites
