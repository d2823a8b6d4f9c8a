"""Which of two collectives comes first in the program, as ranks tell that are not in question: all run the same one,
each in groups of its own, and have come as far in those of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class Position(Protocol):
    """How far a rank has come in a communicator."""

    @property
    def enqueued(self) -> int: ...
    @property
    def completed(self) -> int: ...


class Operation(NamedTuple):
    """A collective by its place: one of a kind has the same number in each group of that kind."""

    communicator: str
    number: int

    @property
    def kind(self) -> str:
        return self.communicator.partition(":")[0]


def first_of(one: Operation, other: Operation, witnesses: Iterable[Mapping[str, Position]]) -> Operation | None:
    """What all witnesses that can tell have come to before the other; None where none can, or they differ.

    witnesses: frontiers, by the communicators' ids.
    """
    found = None
    for frontier in witnesses:
        first = _first(one, other, frontier)
        if found is not None and first not in (None, found):
            return None  # where all ranks are in circles, two of them tell
        found = found or first
    return found


def _first(one: Operation, other: Operation, frontier: Mapping[str, Position]) -> Operation | None:
    mine, yours = _of_kind(one.kind, frontier), _of_kind(other.kind, frontier)
    if one.kind == other.kind or mine is None or yours is None:
        return None
    if _precedes(mine, one.number, yours, other.number):
        return one
    return other if _precedes(yours, other.number, mine, one.number) else None


def _of_kind(kind: str, frontier: Mapping[str, Position]) -> Position | None:
    """None where there are none, or several."""
    found = [position for name, position in frontier.items() if name.partition(":")[0] == kind]
    return found[0] if len(found) == 1 else None


def _precedes(early: Position, number: int, late: Position, late_number: int) -> bool:
    """Whether a rank has come to the one first: it is through before it waits in the other, or has entered it where
    exactly the other is next."""
    if early.completed >= number:
        return late.completed < late_number and late_number - late.enqueued in (0, 1)
    return early.enqueued >= number and late.enqueued == late_number - 1
