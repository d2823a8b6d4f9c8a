"""How far the hosts of stages whose orders are given run ahead: in receives that are posted, and in operations that
are launched before their device has ended them.

Of each lane a stage posts some messages behind those that it has taken; of gradients no more than it has run forward.
A host that lets its device wait for a message has handed over all that it sent before, for which the receivers must be
posted (docs/transport.md). So an order in which stages are far apart needs more receives: with too few, two hosts wait
for each other. Static schedules need one, orders that were chosen while they ran as many as the cap at most, since a
message that was not taken holds an activation of its sender's, or of its receiver's.

Nor does a host run ahead without end: tensors that are received and sent are held from an operation's launch on, before
the device runs it. A host that stays back posts no receives, so that an order may need more than MOST_LAUNCHED.

Each condition is met once and for all, whoever goes on first: one run of all hosts and devices tells whether any stop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout

RECEIVES_AHEAD = 2
"""Where the order does not ask for more: a message is there when its operation may begin."""
MOST_LAUNCHED = 4
"""Where the order does not ask for more, the running one included: the device goes on while its host is held up for
the time of three operations."""


def receives_ahead(layout: Layout, orders: Sequence[Order]) -> int:
    """Messages of a lane with which no host waits for ever, RECEIVES_AHEAD at least, where hosts run ahead without end.
    orders: of all stages, as devices can run them: all messages of a lane are enough then, as a gradient is sent when
    its receiver has run forward."""
    return _least(
        RECEIVES_AHEAD, layout.microbatches, lambda ahead: _Stages(layout, orders, ahead, layout.operations).run()
    )


def most_launched(layout: Layout, orders: Sequence[Order], receives_ahead: int) -> int:
    """Operations that a device has not ended, with which no host waits for ever, MOST_LAUNCHED at least. Given what
    `receives_ahead` tells of the orders, all of them are enough."""
    return _least(
        MOST_LAUNCHED, layout.operations, lambda launched: _Stages(layout, orders, receives_ahead, launched).run()
    )


def _least(least: int, most: int, is_enough: Callable[[int], bool]) -> int:
    """`least` in most orders; `most` is enough."""
    if least >= most or is_enough(least):
        return least
    return bisect_left(range(most), True, lo=least + 1, key=is_enough)


class _Outgoing(NamedTuple):
    """What is sent of one of a stage's lanes to another stage."""

    lane: int
    stage: int
    needed: int
    """The lane there that takes it."""
    forward: int
    """The lane there without which no receive is posted: its chunk's F."""


class _Stages:
    """All of them: each host launches its order's next operation as soon as it may, each device ends it as soon as what
    it needs has come. How long that takes does not matter. Places are in the stage's order, counts by lane."""

    def __init__(self, layout: Layout, orders: Sequence[Order], receives_ahead: int, most_launched: int) -> None:
        self._receives_ahead, self._most_launched = receives_ahead, most_launched
        stages, lanes = range(layout.stages), layout.lanes
        self._orders = [[(layout.lane(kind, chunk), i) for kind, chunk, i in order] for order in orders]
        self._launched, self._ended = [0] * layout.stages, [0] * layout.stages
        self._launched_of = [[0] * lanes for _ in stages]
        self._ended_of = [[0] * lanes for _ in stages]
        self._sources: list[list[tuple[int, int] | None]] = [[None] * lanes for _ in stages]
        """Stage and lane of what a lane receives from another stage."""
        self._outgoing: list[list[_Outgoing]] = [[] for _ in stages]
        for stage in stages:
            self._connect(layout, stage)

    def _connect(self, layout: Layout, stage: int) -> None:
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            for chunk in range(layout.chunks):
                following = layout.following(stage, kind, chunk)
                if following is None or following[0] == stage:
                    continue
                there, needed_kind, needed_chunk = following
                lane, needed = layout.lane(kind, chunk), layout.lane(needed_kind, needed_chunk)
                forward = layout.lane(Kind.FORWARD, needed_chunk)
                self._outgoing[stage].append(_Outgoing(lane, there, needed, forward))
                self._sources[there][needed] = stage, lane

    def run(self) -> bool:
        """Whether all come to the end of their orders."""
        moved = True
        while moved:
            moved = False
            for stage in range(len(self._orders)):
                while self._launch(stage) or self._end(stage):
                    moved = True
        return all(ended == len(order) for ended, order in zip(self._ended, self._orders, strict=True))

    def _launch(self, stage: int) -> bool:
        place, order = self._launched[stage], self._orders[stage]
        if place == len(order) or place - self._ended[stage] >= self._most_launched:
            return False
        lane, _ = order[place]
        if self._sources[stage][lane] is not None and not self._has_handed_over(stage):
            return False
        self._launched[stage] += 1
        self._launched_of[stage][lane] += 1
        return True

    def _has_handed_over(self, stage: int) -> bool:
        launched = self._launched_of[stage]
        return all(launched[each.lane] <= self._posted(each) for each in self._outgoing[stage])

    def _posted(self, to: _Outgoing) -> int:
        launched = self._launched_of[to.stage]
        limit = launched[to.needed] + self._receives_ahead
        return limit if to.needed == to.forward else min(limit, launched[to.forward])

    def _end(self, stage: int) -> bool:
        place = self._ended[stage]
        if place == self._launched[stage]:
            return False
        lane, microbatch = self._orders[stage][place]
        source = self._sources[stage][lane]
        if source is not None and self._ended_of[source[0]][source[1]] <= microbatch:
            return False
        self._ended[stage] += 1
        self._ended_of[stage][lane] += 1
        return True
