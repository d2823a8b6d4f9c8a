"""Jobs of random programs in which one rank leaves out a collective, or swaps two, run until nothing moves.

All ranks call the same kinds of collectives in a step, in the same order, each in groups of its own. Beside these the
last stage calls one more, as for its loss, and the first and the last one share one, as for their embeddings.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from megatronapp.detector.signals.frontier import Frontier, Position, blame
from megatronapp.detector.signals.order import Whereabouts

STEPS = 12
DEGREES = ((2, 1, 2), (1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 4, 2), (1, 2, 4), (2, 2, 4), (1, 1, 4), (4, 1, 4), (2, 4, 2))
"""Tensor, pipeline and data parallelism."""
SHARED = {"tp": (1, 2), "pp": (0, 2), "dp": (0, 1), "mp": (2,), "edp": (0,), "world": ()}
"""By kind of communicator the coordinates that its members share."""
EMBEDDING, LOSS = "embd", "dp"

Place = tuple[int, int, int]
"""Coordinates: tensor, pipeline, data."""
Call = tuple[int, str]
"""Its step, and the communicator."""


@dataclass(frozen=True)
class Stuck:
    culprit: int
    frontiers: dict[int, Frontier]
    members: dict[str, tuple[int, ...]]
    whereabouts: dict[int, Whereabouts]

    def named(self) -> set[int]:
        """Whom a finding names."""
        activities = {
            rank: "all_reduce" if any(position.inside for position in frontier.values()) else ""
            for rank, frontier in self.frontiers.items()
        }
        blamed = blame(self.frontiers, self.members, activities=activities, whereabouts=self.whereabouts)
        return {rank for each in blamed for rank in each.suspects or (each.rank,)}


class Job:
    """Its ranks run until each is in a collective that others have not entered, or through."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        degrees = self._random.choice(DEGREES)
        self._places: list[Place] = list(product(*map(range, degrees)))
        self._last = degrees[1] - 1
        self.members: dict[str, tuple[int, ...]] = {}
        self._own = [dict(self._communicators(place)) for place in self._places]
        self._programs = self._right()
        self.culprit = self._random.randrange(len(self._places))
        self._break(self._programs[self.culprit])
        self._done = [0] * len(self._places)
        self._inside: dict[int, str] = {}
        self._entered = [Counter[str]() for _ in self._places]
        self._at = [dict[str, int]() for _ in self._places]

    def run(self) -> Stuck | None:
        """None where the fault stops nobody."""
        clock = 0
        while ready := [rank for rank in range(len(self._places)) if rank not in self._inside and self._left(rank)]:
            clock += 1
            self._enter(self._random.choice(ready), clock)
        if not self._inside:
            return None
        frontiers = {rank: self._frontier(rank) for rank in range(len(self._places))}
        whereabouts = {rank: Whereabouts(self._step(rank), stage=place[1]) for rank, place in enumerate(self._places)}
        return Stuck(self.culprit, frontiers, self.members, whereabouts)

    def _communicators(self, place: Place) -> Iterator[tuple[str, str]]:
        for kind, shared in SHARED.items():
            yield from self._communicator(kind, [p for p in self._places if all(p[i] == place[i] for i in shared)])
        if place[1] in (0, self._last):
            ends = [p for p in self._places if p[1] in (0, self._last) and (p[0], p[2]) == (place[0], place[2])]
            yield from self._communicator(EMBEDDING, ends)

    def _communicator(self, kind: str, places: list[Place]) -> Iterator[tuple[str, str]]:
        ranks = tuple(map(self._places.index, places))
        if len(ranks) > 1:
            name = f"{kind}:{'-'.join(map(str, ranks))}"
            self.members[name] = ranks
            yield kind, name

    def _right(self) -> list[list[Call]]:
        common = self._random.choices(list(SHARED), k=self._random.randint(2, 8))
        for kind in (EMBEDDING, "loss"):
            common.insert(self._random.randint(0, len(common)), kind)
        programs = list[list[Call]]()
        for place, own in zip(self._places, self._own, strict=True):
            loss = {"loss": own[LOSS]} if place[1] == self._last and LOSS in own else {}
            called = [name for kind in common if (name := (own | loss).get(kind))]
            programs.append([(step, name) for step in range(1, STEPS + 1) for name in called])
        return programs

    def _break(self, program: list[Call]) -> None:
        """Leave a call out, or put it off until after the next."""
        at = self._random.randrange(max(1, len(program) - 1))
        if self._random.random() < 0.5:
            del program[at : at + 1]
        else:
            program[at : at + 2] = reversed(program[at : at + 2])

    def _left(self, rank: int) -> bool:
        return self._done[rank] < len(self._programs[rank])

    def _step(self, rank: int) -> int:
        return next((step for step, _ in self._programs[rank][self._done[rank] :]), STEPS)

    def _enter(self, rank: int, clock: int) -> None:
        _, name = self._programs[rank][self._done[rank]]
        self._entered[rank][name] += 1
        self._at[rank][name] = clock
        self._inside[rank] = name
        if all(self._inside.get(other) == name for other in self.members[name]):
            for other in self.members[name]:
                del self._inside[other]
                self._done[other] += 1

    def _frontier(self, rank: int) -> Frontier:
        return {
            name: Position(
                entered,
                entered,
                entered - (self._inside.get(rank) == name),
                "all_reduce",
                enqueued_at_ns=self._at[rank][name],
            )
            for name, entered in self._entered[rank].items()
        }
