"""NCCL's operations from their call to their end, until the step that they belong to leaves, and where the GPU's clock
stands on the host's. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from megatronapp.core.trace.limits import MAX_TIME_NS
from megatronapp.trainer.agent.operations import Completed, Enqueued

MOST = 1 << 16
"""Operations that are kept; the oldest give way."""
DRIFT = 50e-6
"""By which two clocks run apart at most."""


@dataclass(slots=True)
class Recorded:
    called: Enqueued
    ended: Completed | None = None

    @property
    def placeable(self) -> bool:
        """The device has told when it ran."""
        return self.ended is not None and 0 < self.ended.start_ns <= self.ended.end_ns < MAX_TIME_NS

    @property
    def awaited(self) -> bool:
        return self.called.timed and self.ended is None


class RecordedOperations:
    """In the order in which they were called."""

    def __init__(self) -> None:
        self._operations: dict[tuple[int, int], Recorded] = {}

    def note(self, records: Iterable[Enqueued | Completed]) -> None:
        for record in records:
            key = record.lane, record.number
            if isinstance(record, Enqueued):
                self._operations[key] = Recorded(record)
                if len(self._operations) > MOST:
                    del self._operations[next(iter(self._operations))]
            elif (known := self._operations.get(key)) is not None:
                known.ended = record

    def whole(self, until_ns: int) -> bool:
        """Whether all that were called by then have been told of to their end."""
        return not any(each.awaited for each in self._until(until_ns))

    def take(self, until_ns: int) -> list[Recorded]:
        """Those that were called by then; they are forgotten here."""
        taken = self._until(until_ns)
        for each in taken:
            del self._operations[each.called.lane, each.called.number]
        return taken

    def _until(self, until_ns: int) -> list[Recorded]:
        found: list[Recorded] = []
        for each in self._operations.values():
            if each.called.at_ns > until_ns:
                break
            found.append(each)
        return found


class GpuClock:
    """How far the host's clock is ahead of the GPU's (globaltimer): nothing begins before it was called, and nothing is
    told before it has happened. The newest bounds are the tightest that the clocks' drift leaves of all."""

    def __init__(self) -> None:
        self._low = self._high = 0.0
        self._at_ns: int | None = None

    @property
    def offset_ns(self) -> int | None:
        """None: nothing is known of it yet."""
        return None if self._at_ns is None else round((self._low + self._high) / 2)

    def note(self, low_ns: int, high_ns: int, at_ns: int) -> None:
        """It was between these at this host time. Bounds that contradict what was known begin anew: a clock was set."""
        if low_ns > high_ns:
            return
        if self._at_ns is not None:
            spread = DRIFT * max(at_ns - self._at_ns, 0)
            low, high = max(low_ns, self._low - spread), min(high_ns, self._high + spread)
            if low <= high:
                self._low, self._high, self._at_ns = low, high, max(at_ns, self._at_ns)
                return
        self._low, self._high, self._at_ns = low_ns, high_ns, at_ns
