"""A step of a training with experts: what each expert makes of its tokens, what the MLP adds, and who goes where, put
together as the gateway does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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
RESULTS = ("experts.out", "mlp.out", "router.load")
ACTIVATIONS = (
    *("experts.act", "mlp.out", "router.load"),
    *(f"weight.mlp.experts.experts.{expert}.linear_fc2.weight" for expert in range(4)),
)
"""And the second matrix of each expert."""


def shown_step(
    ranks: int, flags: str, monkeypatch: pytest.MonkeyPatch, *, sites: Sequence[str] = RESULTS, replicas: int = 1
) -> tuple[list[Values], list[float]]:
    """Of the first microbatch in a layer, by site; and the losses of all steps."""
    with scoped_job(ranks, flags, monkeypatch, steps=STEPS) as job:
        gateway, step = job.gateway, job.paused_before()
        asked = [Asked(number, f"layers[1].{site}", site) for number, site in enumerate(sites, 1)]
        taps = [scope_pb2.ScopeTap(id=each.tap, expression=each.expression, quantizer="f32") for each in asked]
        gateway.show(1, taps, job.ranks)
        gateway.train("step", 0, job.ranks, "step", steps=1, lease_seconds=120)
        wanted = [(rank, each) for rank in job.ranks for each in asked if _site_of(gateway, rank, each.site)]
        assert {each.site for _, each in wanted} == set(sites)
        gateway.wait(
            lambda: all(len(_shown(gateway, rank, step, each.tap)) == each.frames(replicas) for rank, each in wanted)
        )
        found = [_whole(gateway, job.ranks, step, each) for each in asked]
        gateway.demand(2, [], job.ranks)
        gateway.train("resume", 0, job.ranks, "resume")
        return found, job.done()


@dataclass(frozen=True)
class Asked:
    tap: int
    expression: str
    site: str

    def frames(self, replicas: int) -> int:
        """That a rank shows of a step."""
        return 1 if self.site.startswith("weight.") else MICROBATCHES // replicas


def assert_add_up(experts: Values, mlp: Values, load: Values) -> None:
    """Each expert adds to the tokens that go to it, and all together what the MLP adds."""
    together = _of_their_tokens(experts, load).sum(2)
    assert np.abs(together - mlp.array).max() <= 1e-5 * np.abs(mlp.array).max()


def assert_products_add_up(
    activations: Values, mlp: Values, load: Values, *matrices: Values, tolerance: float = 1e-5
) -> None:
    """Each expert has activations of the tokens that go to it: times its second matrix, and all together, what the MLP
    adds."""
    stacked = np.stack([matrix.array for matrix in matrices])
    together = np.einsum("btec,ehc->bth", _of_their_tokens(activations, load), stacked)
    assert np.abs(together - mlp.array).max() <= tolerance * np.abs(mlp.array).max()


def _of_their_tokens(experts: Values, load: Values) -> npt.NDArray[np.float32]:
    """0 where a token goes to others."""
    assert experts.masked is not None
    assert experts.array.shape[:-1] == load.array.shape
    np.testing.assert_array_equal(experts.masked, np.broadcast_to(load.array[..., None] == 0, experts.array.shape))
    return np.where(experts.masked, 0, experts.array)


def _site_of(gateway: ScopeGateway, rank: int, name: str) -> scope_pb2.ScopeSite | None:
    sites = gateway.hellos[rank].sites
    return next((site for site in sites if site.name == name and "generate" not in site.passes), None)


def _shown(gateway: ScopeGateway, rank: int, step: int, tap: int) -> list[Frame]:
    return [frame for frame in gateway.frames[rank] if (frame.subscription, frame.step) == (tap, step)]


def _whole(gateway: ScopeGateway, ranks: range, step: int, asked: Asked) -> Values:
    made: Any = None
    shards: dict[Piece, Any] = {}
    for rank in ranks:
        if (given := _site_of(gateway, rank, asked.site)) is None:  # other experts' weights
            continue
        axes = site_from_proto(given).axes
        made = made or plan(parse(asked.expression), asked.site, axes)
        piece = place_of(made, axes, rank)
        if piece is not None:
            [frame, *_] = [frame for frame in _shown(gateway, rank, step, asked.tap) if not frame.microbatch]
            shards.setdefault(piece, of_frame(frame))
    result, missing = stitch(made, shards)
    assert isinstance(result, Values)
    assert missing == 0
    return result
