"""What each expert adds to its tokens, put together over expert-parallel ranks, is all that the MLP adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.plan import plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import of_frame
from megatronapp.core.scope.sites import Axis
from megatronapp.core.scope.stitch import Piece, place_of, stitch
from megatronapp.core.scope.wire import site_from_proto
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.v1 import scope_pb2
from tests.support.forked import run_forked
from tests.support.scope_gateway import ScopeGateway
from tests.support.scoped_job import run_plain, scoped_job
from tests.support.training import TINY

MOE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"
STEPS = 6
SITES = {1: "experts.out", 2: "mlp.out", 3: "router.load"}
EXPRESSIONS = {number: f"layers[1].{site}" for number, site in SITES.items()}


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (1, ""),
        (2, "--expert-model-parallel-size 2"),
        pytest.param(2, "", marks=pytest.mark.long),  # two replicas, each of which has all experts
        pytest.param(4, "--expert-model-parallel-size 2", marks=pytest.mark.long),
        pytest.param(2, "--expert-model-parallel-size 2 --moe-grouped-gemm", marks=pytest.mark.long),
    ],
)
def test_what_experts_add_is_together_what_the_mlp_adds(
    ranks: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = f"{MOE} {layout}"
    with scoped_job(ranks, flags, monkeypatch, steps=STEPS) as job:
        gateway, step = job.gateway, job.paused_before()
        taps = [scope_pb2.ScopeTap(id=number, expression=each, quantizer="f32") for number, each in EXPRESSIONS.items()]
        gateway.show(1, taps, job.ranks)
        gateway.train("step", 0, job.ranks, "step", steps=1, lease_seconds=120)
        gateway.wait(
            lambda: all(len(shown(gateway, rank, step, tap)) == 4 // ranks for rank in job.ranks for tap in SITES)
        )
        experts, mlp, load = (whole(gateway, job.ranks, step, number, site) for number, site in SITES.items())
        gateway.demand(2, [], job.ranks)
        gateway.train("resume", 0, job.ranks, "resume")
        losses = job.done()

    assert experts.masked is not None
    assert experts.array.shape == (*load.array.shape, 32)
    np.testing.assert_array_equal(experts.masked, np.broadcast_to(load.array[..., None] == 0, experts.array.shape))
    together = np.where(experts.masked, 0, experts.array).sum(2)
    assert np.abs(together - mlp.array).max() <= 1e-5 * np.abs(mlp.array).max()
    assert losses == run_forked(ranks, run_plain, f"{TINY} --train-iters {STEPS} {flags}")[-1]


def test_experts_whose_sums_alone_a_rank_has_are_no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallelism under the dispatcher that adds up over ranks and experts at once."""
    layout = f"{MOE} --tensor-model-parallel-size 2 --sequence-parallel"
    with scoped_job(2, layout, monkeypatch, steps=STEPS) as job:
        job.paused_before()
        sites = {site.name for site in job.gateway.hellos[0].sites}
        job.gateway.train("resume", 0, job.ranks, "resume")
        job.done()

    assert "router.load" in sites
    assert "experts.out" not in sites


def shown(gateway: ScopeGateway, rank: int, step: int, tap: int) -> list[Frame]:
    return [frame for frame in gateway.frames[rank] if (frame.subscription, frame.step) == (tap, step)]


def whole(gateway: ScopeGateway, ranks: range, step: int, tap: int, name: str) -> Values:
    """Of the first microbatch, as the gateway puts it together."""
    made: Any = None
    shards: dict[Piece, Any] = {}
    for rank in ranks:
        [given] = [site for site in gateway.hellos[rank].sites if site.name == name and "generate" not in site.passes]
        axes: tuple[Axis, ...] = site_from_proto(given).axes
        made = made or plan(parse(EXPRESSIONS[tap]), name, axes)
        piece = place_of(made, axes, rank)
        if piece is not None:
            [frame, *_] = [frame for frame in shown(gateway, rank, step, tap) if not frame.microbatch]
            shards.setdefault(piece, of_frame(frame))
    result, missing = stitch(made, shards)
    assert isinstance(result, Values)
    assert missing == 0
    return result
