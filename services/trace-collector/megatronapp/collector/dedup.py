"""Which messages of an incarnation have arrived: intervals of sequence numbers, so that a gap stays open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class SeenNumbers:
    """A set of positive integers that mostly are consecutive; `intervals` are inclusive, apart and ascending.

    It holds at most MAX_INTERVALS: beyond that the oldest gap counts as seen, since a sender resends in order and will
    not come back to it.
    """

    intervals: list[tuple[int, int]] = field(default_factory=list)

    MAX_INTERVALS = 1024

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.intervals, (number, _INFINITY)) - 1
        return index >= 0 and number <= self.intervals[index][1]

    def add(self, number: int) -> bool:
        """Whether the number is new."""
        if self.intervals and number == self.intervals[-1][1] + 1:
            self.intervals[-1] = (self.intervals[-1][0], number)
            return True
        if number in self:
            return False
        self._insert(number)
        return True

    def _insert(self, number: int) -> None:
        index = bisect_right(self.intervals, (number, _INFINITY))
        low = high = number
        if index < len(self.intervals) and self.intervals[index][0] == number + 1:
            high = self.intervals.pop(index)[1]
        if index > 0 and self.intervals[index - 1][1] == number - 1:
            index -= 1
            low = self.intervals.pop(index)[0]
        self.intervals.insert(index, (low, high))
        if len(self.intervals) > self.MAX_INTERVALS:
            (first, _), (_, last) = self.intervals[:2]
            self.intervals[:2] = [(first, last)]


_INFINITY = 1 << 65


@dataclass
class Dedup:
    """One SeenNumbers per incarnation of a rank process: (run, attempt, rank, incarnation)."""

    seen: dict[tuple[str, int, int, int], SeenNumbers] = field(default_factory=dict)

    def add(self, sender: tuple[str, int, int, int], seq: int) -> bool:
        """Whether the message is new. Number 0 (Hello) always is."""
        return seq == 0 or self.seen.setdefault(sender, SeenNumbers()).add(seq)

    def contains(self, sender: tuple[str, int, int, int], seq: int) -> bool:
        return sender in self.seen and seq in self.seen[sender]

    def forget(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Drop what belongs to (run, attempt)s that are no longer kept."""
        gone = set(attempts)
        self.seen = {key: seen for key, seen in self.seen.items() if key[:2] not in gone}

    def to_json(self) -> list[list[object]]:
        """A copy of the state as it is now."""
        return [[*key, list(seen.intervals)] for key, seen in self.seen.items()]

    @classmethod
    def from_json(cls, rows: list[list[object]]) -> Dedup:
        seen = {}
        for run, attempt, rank, incarnation, intervals in rows:
            key = (str(run), int(str(attempt)), int(str(rank)), int(str(incarnation)))
            seen[key] = SeenNumbers([(low, high) for low, high in intervals])  # type: ignore[attr-defined]
        return cls(seen)
