"""Which of several ranks runs its operations in another order than the others.

All run one program. How far a rank has come tells which operations it has entered before others: those that it has
before those that are next, and of the newest the earlier one before the later one. Of two ranks that tell opposite
orders one is wrong, and who alone is wrong is in each such pair.

Steps are counted as operations are: a rank that is in a later step than one that is in an operation which it has not
entered has left that out. Numbers of a communicator are the same on all its members, and those of another one of its
kind on ranks of the same stage; one stage may have more operations of a kind than the next. Stages that choose what
they run next may put operations of two kinds in other orders, so that numbers which are further apart tell nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, Protocol

MESSAGES = "p2p"
STEP = "step"


class Whereabouts(NamedTuple):
    """What a rank is in beside its operations. Ranks of one role count the same steps; those of one stage of it run the
    same part of the program."""

    step: int = 0
    role: str = ""
    stage: int = 0


class Position(Protocol):
    """How far a rank has come in a communicator."""

    @property
    def enqueued(self) -> int: ...
    @property
    def outstanding(self) -> bool: ...
    @property
    def enqueued_at_ns(self) -> int: ...


class Newest(NamedTuple):
    """The newest operation of a kind that a rank has entered."""

    communicator: str
    number: int
    at: float
    """Greater than of earlier ones; not a number where it is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    part: tuple[str, int]
    """Its role and stage."""
    newest: Mapping[str, Newest]
    """By kind, of those of which the rank has one communicator."""


def place(frontier: Mapping[str, Position], whereabouts: Whereabouts) -> Place:
    timed = any(position.enqueued_at_ns for position in frontier.values())
    step, role, stage = whereabouts
    newest, several = {STEP: Newest(f"{STEP}:{role}", step, math.nan)}, {MESSAGES}
    for name, position in frontier.items():
        kind = name.partition(":")[0]
        if kind in newest:
            several.add(kind)
        # Without times: one that is through was entered before one that is waited in.
        at = (position.enqueued_at_ns or math.nan) if timed else position.outstanding
        newest[kind] = Newest(name, position.enqueued, at)
    return Place((role, stage), {kind: own for kind, own in newest.items() if kind not in several})


def unlike_others(suspects: frozenset[int], places: Mapping[int, Place]) -> frozenset[int]:
    """Those of the suspects that are in each pair of ranks, one of them a suspect, that differ."""
    left = suspects
    for rank in suspects:
        for other, its in places.items():
            if other != rank and not left <= {rank, other} and differ(places[rank], its):
                left &= {rank, other}
    return left


def differ(one: Place, other: Place) -> bool:
    """Whether two ranks have entered two operations in opposite orders."""
    mine, yours = one.newest, other.newest
    same = one.part == other.part
    kinds = [kind for kind in mine.keys() & yours.keys() if _comparable(mine[kind], yours[kind], same_part=same)]
    return any(
        _next(mine, early, late) <= yours[late].number and _next(yours, late, early) <= mine[early].number
        for early, late in permutations(kinds, 2)
    )


def _comparable(one: Newest, other: Newest, *, same_part: bool) -> bool:
    return one.communicator == other.communicator or (same_part and abs(one.number - other.number) <= 1)


def _next(newest: Mapping[str, Newest], early: str, late: str) -> int:
    """The first operation of a kind that is known to come behind the newest of another."""
    return newest[late].number + (0 if newest[early].at < newest[late].at else 1)
