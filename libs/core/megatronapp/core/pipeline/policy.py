"""Which operation a stage runs next: of the lanes' heads that can run, the one that stands first in the hint.

A hint is an order of a stage's operations that binds nobody: an operation whose input has not come is passed over. W
that the hint does not place come after everything else: they fill what would be idle. A strict stage instead runs its
order as it is, and waits for the next operation whatever else could run: the static schedules, and a recorded order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import lanes
from megatronapp.core.pipeline.admission import admits
from megatronapp.core.pipeline.lanes import IN_FLIGHT, PEAK, WHOLE
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout

NOTHING = -1
NEVER = 1 << 62
"""Arrival of what has not arrived; a place behind all others."""


def choose(
    now: int, strict: bool, reserve: bool, chunks: int, microbatches: int,
    started: Any, held: Any, cap: int, places: Any, arrivals: Any,
) -> int:  # fmt: skip
    """The lane whose head runs next, or NOTHING.

    places and arrivals are by operation: the place in the hint, and when its input arrives. On a stage that runs one
    operation at a time, W is ready when its B has begun.
    """
    best, first = NOTHING, NEVER
    done = 0
    if strict:
        for count in started:
            done += count
    for lane in range(len(started)):
        head = started[lane]
        if head == microbatches:
            continue
        number = lane * microbatches + head
        place = places[number]
        if place >= first or (strict and place != done):
            continue
        if lane >= 2 * chunks:
            ready = head < started[lane - chunks]
        else:
            ready = arrivals[number] <= now
            if ready and lane < chunks and not strict:
                ready = admits(held, cap, chunks, lane, reserve)
        if ready:
            best, first = lane, place
    return best


def places_of(layout: Layout, order: Sequence[Operation]) -> list[int]:
    """Place of each operation by its number. Operations that are not in the order, which may be W alone, come behind
    all others. Raises UsageError for an order that lacks others, has one twice, or mixes a lane's microbatches."""
    places = [NEVER] * layout.operations
    for place, operation in enumerate(order):
        if not _exists(layout, operation):
            raise UsageError(f"the order has {operation}, which this pipeline has not")
        number = layout.number(operation)
        if places[number] != NEVER:
            raise UsageError(f"the order has {operation} twice")
        places[number] = place
    filler = len(order)
    for number, operation in enumerate(layout.all_operations()):
        if places[number] == NEVER:
            if operation.kind is not Kind.WGRAD:
                raise UsageError(f"the order lacks {operation}")
            places[number] = filler + operation.microbatch * layout.chunks + layout.chunks - 1 - operation.chunk
        if operation.microbatch and places[number] < places[number - 1]:
            raise UsageError(
                f"the order has {operation} before the microbatch that precedes it; lanes keep their order"
            )
    return places


def _exists(layout: Layout, operation: Operation) -> bool:
    return (
        operation.kind in layout.kinds
        and 0 <= operation.chunk < layout.chunks
        and 0 <= operation.microbatch < layout.microbatches
    )


class StagePolicy:
    """One stage's choices while it runs.

    `arrived` tells of inputs, `choose` what to run next, `start` and `end` what was run. `order` is the hint, or with
    `strict` the order itself, which no cap holds up. Raises UsageError for an order that does not fit the layout.
    """

    def __init__(
        self, layout: Layout, stage: int, order: Sequence[Operation], *,
        cap: int, strict: bool = False, pending: int = WHOLE,
    ) -> None:  # fmt: skip
        self.layout, self.stage, self.cap, self.strict, self._pending = layout, stage, cap, strict, pending
        self._places = places_of(layout, order)
        self._arrivals = [NEVER] * (layout.lanes * layout.microbatches)
        self._started = [0] * layout.lanes
        self._held = [0, 0]
        self._left = layout.operations
        self._order = sorted(range(layout.operations), key=self._places.__getitem__) if strict else []
        self._fed = dict(self._feeds_itself())
        for chunk in range(layout.chunks):
            if layout.part(stage, chunk) == 0:
                for microbatch in range(layout.microbatches):
                    self.arrived(Operation(Kind.FORWARD, chunk, microbatch))

    @property
    def in_flight(self) -> float:
        return self._held[IN_FLIGHT] / WHOLE

    @property
    def peak(self) -> float:
        """Most activations that were in flight."""
        return self._held[PEAK] / WHOLE

    @property
    def finished(self) -> bool:
        return not self._left

    def arrived(self, operation: Operation) -> None:
        """The operation's input is there. For B of the model's last part that is the end of its F, told by `end`."""
        self._arrivals[self.layout.number(operation)] = 0

    def choose(self) -> Operation | None:
        """What to run next of what can run, or None."""
        layout = self.layout
        lane = choose(
            0, self.strict, True, layout.chunks, layout.microbatches,
            self._started, self._held, self.cap, self._places, self._arrivals,
        )  # fmt: skip
        return None if lane == NOTHING else layout.operation(lane * layout.microbatches + self._started[lane])

    def following(self) -> Operation:
        """The next one of a strict order, whether or not its input has come."""
        return self.layout.operation(self._order[self.layout.operations - self._left])

    def start(self, operation: Operation) -> None:
        """Raises ValueError for what is not at the head of its lane."""
        lane = self.layout.lane(operation.kind, operation.chunk)
        if operation.microbatch != self._started[lane]:
            raise ValueError(f"{operation} is not at the head of its lane")
        self._left -= 1
        lanes.start(self._started, self._held, self.layout.chunks, lane)

    def end(self, operation: Operation) -> None:
        lane = self.layout.lane(operation.kind, operation.chunk)
        lanes.end(self._started, self._held, self.layout.chunks, lane, self._pending)
        if (fed := self._fed.get(lane)) is not None:
            self.arrived(Operation(*fed, operation.microbatch))

    def _feeds_itself(self) -> Iterator[tuple[int, tuple[Kind, int]]]:
        """Lanes whose results the stage itself needs, and the lane (kind, chunk) that needs them."""
        layout = self.layout
        for kind in layout.kinds:
            for chunk in range(layout.chunks):
                following = layout.following(self.stage, kind, chunk)
                if following is not None and following[0] == self.stage:
                    yield layout.lane(kind, chunk), following[1:]
