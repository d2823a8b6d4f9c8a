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


Sender = tuple[str, int, int, int]
"""Run, attempt, rank, incarnation."""
KEPT_PROCESSES = 64
"""Of one rank of an attempt, the newest. What an older one sends again belongs to a process that was replaced, which
nobody believes any more (core/trace/membership.py)."""


@dataclass
class Dedup:
    """One SeenNumbers per incarnation of a rank process."""

    seen: dict[Sender, SeenNumbers] = field(default_factory=dict)
    _incarnations: dict[tuple[str, int, int], list[int]] = field(init=False, default_factory=dict)
    """Of each run, attempt and rank, in the order of their first messages."""

    def __post_init__(self) -> None:
        for run, attempt, rank, incarnation in self.seen:
            self._incarnations.setdefault((run, attempt, rank), []).append(incarnation)

    def add(self, sender: Sender, seq: int) -> bool:
        """Whether the message is new. Number 0 (Hello) always is."""
        if seq == 0:
            return True
        seen = self.seen.get(sender) or self._begin(sender)
        return seen.add(seq)

    def _begin(self, sender: Sender) -> SeenNumbers:
        run, attempt, rank, incarnation = sender
        known = self._incarnations.setdefault((run, attempt, rank), [])
        known.append(incarnation)
        if len(known) > KEPT_PROCESSES:
            del self.seen[run, attempt, rank, known.pop(0)]
        seen = self.seen[sender] = SeenNumbers()
        return seen

    def contains(self, sender: tuple[str, int, int, int], seq: int) -> bool:
        return sender in self.seen and seq in self.seen[sender]

    def forget(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Drop what belongs to (run, attempt)s that are no longer kept."""
        gone = set(attempts)
        self.seen = {key: seen for key, seen in self.seen.items() if key[:2] not in gone}
        self._incarnations = {key: known for key, known in self._incarnations.items() if key[:2] not in gone}

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
