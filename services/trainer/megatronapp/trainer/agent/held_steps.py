"""Steps that are traced in detail wait until NCCL has told when their operations ran, which is a moment after the
step's end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from megatronapp.core.trace.values import Communicator
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.nccl_spans import NcclSpans
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Step

HOLD_SECONDS = 1.0
MOST = 64
"""Steps of a rank that wait."""


class HeldSteps:
    """Of one rank, in order."""

    def __init__(self, operations: KeptOperations, rank: int, names: SpanNames) -> None:
        self._operations = operations
        self._spans = NcclSpans(rank, names)
        self._held: deque[tuple[Step, float]] = deque()
        """And until when they wait at most."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, steps: Iterable[Step], now_seconds: float) -> None:
        self._held.extend((step, now_seconds + HOLD_SECONDS) for step in steps)

    def release(self, communicators: Iterable[Communicator], now_seconds: float) -> list[Step]:
        """Those that need not wait any longer. Raises SegmentError."""
        self._operations.read()
        groups = {each.index: each.ranks for each in communicators}
        released: list[Step] = []
        while self._held:
            step, deadline = self._held[0]
            until_ns = step.end.start_ns + step.end.duration_ns
            may_wait = step.end.traced and now_seconds < deadline and len(self._held) <= MOST
            if may_wait and not self._operations.recorded.whole(until_ns):
                break
            self._held.popleft()
            operations = self._operations.recorded.take(until_ns)
            if step.end.traced:
                own = [each for each in operations if each.called.at_ns >= step.end.start_ns]
                step = replace(step, detail=self._spans.detail(step.table, own, self._operations.lanes(), groups))
            released.append(step)
        return released
