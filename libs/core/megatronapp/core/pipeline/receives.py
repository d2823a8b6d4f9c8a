"""How far ahead of its operations a stage posts receives.

Of each lane a stage posts some messages behind those that it has taken; of gradients no more than it has run forward.
Where all stages run orders that are given, their hosts run ahead of their devices, and one that lets its device wait
for a message has handed over all that it sent before, for which the receivers must be posted (docs/transport.md). So an
order in which stages are far apart needs more receives: with too few, two hosts wait for each other. Static schedules
need one, orders that were chosen while they ran as many as the cap at most, since a message that was not taken holds an
activation of its sender's, or of its receiver's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout

AHEAD = 4
"""Where the order does not ask for more: a message is there when its operation may begin."""


def least_ahead(layout: Layout, orders: Sequence[Order]) -> int:
    """Messages of a lane with which no host waits for ever, AHEAD at least. orders: of all stages, as devices can run
    them: all messages of a lane are enough then, as a gradient is sent when its receiver has run forward."""
    return bisect_left(
        range(max(AHEAD, layout.microbatches)), True, lo=AHEAD, key=lambda ahead: _Hosts(layout, ahead).run(orders)
    )


class _Hosts:
    """Of all stages, which launch operations as soon as they may: their devices' time does not matter."""

    def __init__(self, layout: Layout, ahead: int) -> None:
        self._layout, self._ahead = layout, ahead
        self._launched = [[0] * layout.lanes for _ in range(layout.stages)]
        self._outgoing = [list(self._lanes_from(stage)) for stage in range(layout.stages)]

    def _lanes_from(self, stage: int) -> list[tuple[int, int, int, int]]:
        """(lane, stage and lane that need its results, that stage's lane without which it posts no receive)."""
        layout, found = self._layout, []
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            for chunk in range(layout.chunks):
                following = layout.following(stage, kind, chunk)
                if following is not None and following[0] != stage:
                    there, needed_kind, needed_chunk = following
                    lane = layout.lane(needed_kind, needed_chunk)
                    found.append((layout.lane(kind, chunk), there, lane, layout.lane(Kind.FORWARD, needed_chunk)))
        return found

    def run(self, orders: Sequence[Order]) -> bool:
        """Whether all come to the end of their orders."""
        places = [0] * len(orders)
        moved = True
        while moved:
            moved = False
            for stage, order in enumerate(orders):
                while places[stage] < len(order) and self._may_launch(stage, order[places[stage]]):
                    operation = order[places[stage]]
                    self._launched[stage][self._layout.lane(operation.kind, operation.chunk)] += 1
                    places[stage] += 1
                    moved = True
        return all(place == len(order) for place, order in zip(places, orders, strict=True))

    def _may_launch(self, stage: int, operation: Operation) -> bool:
        return not self._receives(stage, operation) or all(
            self._launched[stage][lane] <= self._posted(there, needed, forward)
            for lane, there, needed, forward in self._outgoing[stage]
        )

    def _receives(self, stage: int, operation: Operation) -> bool:
        part = self._layout.part(stage, operation.chunk)
        match operation.kind:
            case Kind.FORWARD:
                return part > 0
            case Kind.BACKWARD:
                return part < self._layout.parts - 1
            case Kind.WGRAD:
                return False

    def _posted(self, stage: int, lane: int, forward: int) -> int:
        launched = self._launched[stage]
        limit = launched[lane] + self._ahead
        return limit if lane == forward else min(limit, launched[forward])
