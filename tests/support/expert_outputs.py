"""A step of a training with experts: what each expert adds, what the MLP adds, and who goes where, put together as the
gateway does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.plan import plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import of_frame
from megatronapp.core.scope.stitch import Piece, place_of, stitch
from megatronapp.core.scope.wire import site_from_proto
from megatronapp.v1 import scope_pb2
from tests.support.scope_gateway import ScopeGateway
from tests.support.scoped_job import scoped_job

MOE = "--num-experts 4 --moe-router-topk 2 --disable-bias-linear"
STEPS = 6
MICROBATCHES = 4
"""Of all replicas."""
SITES = {1: "experts.out", 2: "mlp.out", 3: "router.load"}
EXPRESSIONS = {number: f"layers[1].{site}" for number, site in SITES.items()}


def shown_step(
    ranks: int, flags: str, monkeypatch: pytest.MonkeyPatch, *, replicas: int = 1
) -> tuple[list[Values], list[float]]:
    """Of the first microbatch, by `SITES`; and the losses of all steps."""
    with scoped_job(ranks, flags, monkeypatch, steps=STEPS) as job:
        gateway, step = job.gateway, job.paused_before()
        taps = [scope_pb2.ScopeTap(id=number, expression=each, quantizer="f32") for number, each in EXPRESSIONS.items()]
        gateway.show(1, taps, job.ranks)
        gateway.train("step", 0, job.ranks, "step", steps=1, lease_seconds=120)
        wanted = [(rank, tap) for rank in job.ranks for tap in SITES]
        each = MICROBATCHES // replicas
        gateway.wait(lambda: all(len(_shown(gateway, rank, step, tap)) == each for rank, tap in wanted))
        found = [_whole(gateway, job.ranks, step, number, site) for number, site in SITES.items()]
        gateway.demand(2, [], job.ranks)
        gateway.train("resume", 0, job.ranks, "resume")
        return found, job.done()


def assert_add_up(experts: Values, mlp: Values, load: Values) -> None:
    """Each expert adds to the tokens that go to it, and all together what the MLP adds."""
    assert experts.masked is not None
    assert experts.array.shape[:-1] == load.array.shape
    np.testing.assert_array_equal(experts.masked, np.broadcast_to(load.array[..., None] == 0, experts.array.shape))
    together = np.where(experts.masked, 0, experts.array).sum(2)
    assert np.abs(together - mlp.array).max() <= 1e-5 * np.abs(mlp.array).max()


def _shown(gateway: ScopeGateway, rank: int, step: int, tap: int) -> list[Frame]:
    return [frame for frame in gateway.frames[rank] if (frame.subscription, frame.step) == (tap, step)]


def _whole(gateway: ScopeGateway, ranks: range, step: int, tap: int, name: str) -> Values:
    made: Any = None
    shards: dict[Piece, Any] = {}
    for rank in ranks:
        [given] = [site for site in gateway.hellos[rank].sites if site.name == name and "generate" not in site.passes]
        axes = site_from_proto(given).axes
        made = made or plan(parse(EXPRESSIONS[tap]), name, axes)
        piece = place_of(made, axes, rank)
        if piece is not None:
            [frame, *_] = [frame for frame in _shown(gateway, rank, step, tap) if not frame.microbatch]
            shards.setdefault(piece, of_frame(frame))
    result, missing = stitch(made, shards)
    assert isinstance(result, Values)
    assert missing == 0
    return result
