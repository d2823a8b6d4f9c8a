"""The union of what all viewers look at, as what each rank is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from megatronapp.core.scope.expression import Expression
from megatronapp.core.scope.operations import Selector
from megatronapp.core.scope.plan import Plan
from megatronapp.core.scope.stitch import Piece, place_of
from megatronapp.gateway.scope.assembly import Assembly
from megatronapp.gateway.scope.streams import Stream
from megatronapp.gateway.scope.structure import Structure, layers_of
from megatronapp.v1 import scope_pb2


@dataclass(frozen=True, slots=True)
class TapKey:
    expression: str
    partial: bool
    quantizer: str
    request: str
    every: int
    apart: bool
    """Data-parallel replicas are put together each by itself."""
    when: str
    """A condition that the rank's frame alone decides; else the gateway looks at the whole picture."""


@dataclass(slots=True)
class Tap:
    id: int
    key: TapKey
    site: str
    layers: tuple[int, ...]
    lens: bool
    streams: list[Stream] = field(default_factory=list)
    ranks: frozenset[int] = frozenset()
    assembly: Assembly = field(default_factory=Assembly)

    @property
    def max_fps(self) -> float:
        wanted = [stream.max_fps for stream in self.streams]
        return 0.0 if 0.0 in wanted else max(wanted, default=0.0)

    def message(self) -> scope_pb2.ScopeTap:
        return scope_pb2.ScopeTap(
            id=self.id,
            expression=self.key.expression,
            partial=self.key.partial,
            max_fps=self.max_fps,
            quantizer=self.key.quantizer,
            every_steps=self.key.every,
            when=self.key.when,
            request=self.key.request,
        )


class Demand:
    """Taps by id. An id is used for one tap alone, so that a frame that is late can't be taken for another's."""

    def __init__(self) -> None:
        self.taps: dict[int, Tap] = {}
        self.revision = time.time_ns() // 1000
        """It only grows, also where this gateway takes another one's place."""
        self._next = 1

    def update(self, streams: Iterable[Stream], structure: Structure) -> None:
        """Make the taps that these streams need, and let go of others."""
        kept = {tap.key: tap for tap in self.taps.values()}
        wanted: dict[TapKey, Tap] = {}
        for stream in streams:
            if stream.planned is None or not stream.recipients:
                continue
            key = tap_key(stream, stream.planned)
            if key not in wanted:
                wanted[key] = kept.get(key) or self._new(key, stream, stream.planned)
                wanted[key].streams = []
            wanted[key].streams.append(stream)
        self.taps = {tap.id: tap for tap in wanted.values()}
        for tap in self.taps.values():
            tap.ranks = asked(tap, structure)
        self.revision += 1

    def of(self, rank: int) -> scope_pb2.ScopeDemand:
        taps = [tap.message() for tap in self.taps.values() if rank in tap.ranks]
        return scope_pb2.ScopeDemand(revision=self.revision, taps=taps)

    def _new(self, key: TapKey, stream: Stream, planned: Plan) -> Tap:
        self._next += 1
        return Tap(self._next - 1, key, stream.site, stream.layers, planned.lens)


def tap_key(stream: Stream, planned: Plan) -> TapKey:
    selector = Selector(stream.site, stream.expression.selector.layers)
    return TapKey(
        expression=str(Expression(selector, planned.rank)),
        partial=planned.partial,
        quantizer=stream.wire_quantizer(),
        request=stream.key.request,
        every=planned.every,
        apart=planned.replicas > 0,
        when=planned.condition_of_rank,
    )


def asked(tap: Tap, structure: Structure) -> frozenset[int]:
    """The ranks that send: of those that hold the same cells of the same layers, the first. For the lens all ranks, as
    rows travel to the last stage."""
    if tap.lens:
        return frozenset(producer.rank for producer in structure)
    found: set[int] = set()
    for generates in (False, True):
        holders: dict[tuple[frozenset[int], Piece], int] = {}
        for producer, site in structure.having(tap.site, generates=generates):
            layers = layers_of(site, tap.layers)
            if tap.layers and not layers:
                continue
            plan = tap.streams[0].plan_of(site.axes, (), structure.extents(site.axes))
            piece = place_of(plan, site.axes, producer.placement.data)
            if piece is not None:
                holders.setdefault((layers, piece), producer.rank)
        found.update(holders.values())
    return frozenset(found)
