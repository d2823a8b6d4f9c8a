"""A pipeline simulated tick by tick, for comparison: sets, dictionaries and whole ticks, and no code of the product's.

Slow, and meant to be read: each tick, what has ended ends, what has arrived arrives, and then every idle stage takes
the first operation of its order that it may run, or in a strict order the next one if it may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[str, int, int]
"""(F, B or W; part of the model; microbatch)"""


@dataclass(kw_only=True)
class Naive:
    stages: Sequence[Sequence[int]]
    """Of each stage the parts that it holds, in the order of its chunks."""
    microbatches: int
    split: bool
    strict: bool
    cap: Sequence[int]
    orders: Sequence[Sequence[Key]]
    ticks: Mapping[Key, int]
    delay: Mapping[Key, int]
    """Of the message that F or B needs, if it comes from another stage."""
    occupancy: int
    shared: int
    """Neighbouring stages that share their way out; 0: each pair and direction has a link."""
    blocking: bool
    reserve: bool = True
    by_need: bool = False
    """Of messages that wait for a link goes what stands first in its receiver's order; else what set out first."""
    begins: dict[Key, int] = field(default_factory=dict)
    peaks: list[int] = field(default_factory=list)

    def run(self) -> bool:
        """False when nothing moves any more and something is left. Fills in begins and peaks."""
        self.home = {part: stage for stage, parts in enumerate(self.stages) for part in parts}
        self.last_part = max(self.home)
        self.ended: set[Key] = set()
        self.there: set[Key] = {("F", 0, i) for i in range(self.microbatches)}
        self.travelling: dict[Key, int] = {}
        self.busy: dict[int, tuple[int, Key]] = {}
        self.free_at: dict[tuple[int, int], int] = {}
        self.waiting: dict[tuple[int, int], list[Key]] = {}
        self.peaks = [0] * len(self.stages)
        left = {key for order in self.orders for key in order}
        tick = 0
        while left - self.ended:
            self._take_what_is_due(tick)
            for stage in range(len(self.stages)):
                if stage not in self.busy:
                    self._choose(stage, tick)
            due = [at for at, _ in self.busy.values()] + list(self.travelling.values())
            due += [self.free_at[link] for link, keys in self.waiting.items() if keys]
            if not due:
                return not left - self.ended
            tick = min(due)
        return True

    def _take_what_is_due(self, tick: int) -> None:
        for stage in sorted(self.busy):
            at, key = self.busy[stage]
            if at == tick:
                del self.busy[stage]
                self.ended.add(key)
                self._send(stage, key, tick)
        for link, keys in self.waiting.items():
            if keys and self.free_at.get(link, 0) <= tick:
                key = min(keys, key=self._urgency) if self.by_need else keys[0]
                keys.remove(key)
                self.free_at[link] = tick + self.occupancy
                self.travelling[key] = tick + self.occupancy + self.delay[key]
        for key in [key for key, at in self.travelling.items() if at <= tick]:
            del self.travelling[key]
            self.there.add(key)

    def _send(self, stage: int, key: Key, tick: int) -> None:
        kind, part, i = key
        if kind == "F":
            needs = ("F", part + 1, i) if part < self.last_part else ("B", part, i)
        elif kind == "B" and part > 0:
            needs = ("B", part - 1, i)
        else:
            return
        if self.home[needs[1]] == stage or self.blocking:
            self.travelling[needs] = tick
        elif not self.occupancy:
            self.travelling[needs] = tick + self.delay[needs]
        else:
            self.waiting.setdefault(self._link(stage, needs), []).append(needs)

    def _urgency(self, key: Key) -> int:
        return self.orders[self.home[key[1]]].index(key)

    def _link(self, source: int, needs: Key) -> tuple[int, int]:
        return (source // self.shared, -1) if self.shared else (source, self.home[needs[1]])

    def _arrives(self, source: int, needs: Key, tick: int) -> int:
        """Of a message that takes the receiver's time."""
        link = self._link(source, needs)
        begin = max(tick, self.free_at.get(link, 0))
        self.free_at[link] = begin + self.occupancy
        return begin + self.occupancy + self.delay[needs]

    def _choose(self, stage: int, tick: int) -> None:
        for key in self.orders[stage]:
            if key in self.begins:
                continue
            if self._may(stage, key):
                break
            if self.strict:
                return
        else:
            return
        kind, part, _ = key
        begin = tick
        source = {"F": part - 1, "B": part + 1}.get(kind, part)
        if self.blocking and 0 <= source <= self.last_part and self.home[source] != stage:
            begin = self._arrives(self.home[source], key, tick)
        self.begins[key] = begin
        self.busy[stage] = (begin + self.ticks[key], key)
        self.peaks[stage] = max(self.peaks[stage], self._in_flight(stage))

    def _may(self, stage: int, key: Key) -> bool:
        kind, part, i = key
        if any((kind, part, before) not in self.begins for before in range(i)):
            return False
        if kind == "W":
            return ("B", part, i) in self.ended
        if key not in self.there:
            return False
        if kind == "B" or self.strict:
            return True
        later_chunks = len(self.stages[stage]) - 1 - list(self.stages[stage]).index(part)
        return self._in_flight(stage) < self.cap[stage] - (later_chunks if self.reserve else 0)

    def _in_flight(self, stage: int) -> int:
        last = "W" if self.split else "B"
        return sum(
            (kind, part, i) in self.begins and (last, part, i) not in self.ended
            for kind, part, i in self.orders[stage]
            if kind == "F"
        )
