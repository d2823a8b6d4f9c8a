"""The dependencies of one step: which operation waits for which, put in an order in which they can be replayed.

A graph describes one model-parallel group (every stage of one replica). Replicas and steps share it, so its order is
found once per layout and a replay runs through it with arrays that hold all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Generic, TypeVar

from megatronapp.core.errors import DataError

Operation = TypeVar("Operation", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Event:
    """Operations whose work begins at one moment: one computation, or both ends of a message, or a collective."""

    operations: tuple[int, ...]
    """Indices into Graph.operations."""
    after: tuple[int, ...]
    """Operations that must have ended before."""
    across_replicas: bool
    """True: the event also waits for the same event of every other replica."""


@dataclass(frozen=True, slots=True)
class Graph(Generic[Operation]):
    operations: tuple[Operation, ...]
    events: tuple[Event, ...]
    """In an order that never puts an event before one that it waits for."""

    def __len__(self) -> int:
        return len(self.operations)


@dataclass(slots=True)
class GraphBuilder(Generic[Operation]):
    """Collects operations, what they wait for, and which of them start together."""

    _index: dict[Operation, int] = field(default_factory=dict)
    _after: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _leader: dict[int, int] = field(default_factory=dict)
    _across: set[int] = field(default_factory=set)

    def add(self, operation: Operation, after: Iterable[Operation] = ()) -> None:
        """Declare an operation (again), and operations that it waits for."""
        self._after[self._number(operation)].update(self._number(before) for before in after)

    def chain(self, operations: Iterable[Operation]) -> None:
        """Each operation waits for the one before: one stream, one thread."""
        previous: tuple[Operation, ...] = ()
        for operation in operations:
            self.add(operation, previous)
            previous = (operation,)

    def together(self, operations: Iterable[Operation], *, across_replicas: bool = False) -> None:
        """The operations' work begins when the last of them has arrived, of all replicas if asked."""
        members = [self._number(operation) for operation in operations]
        for member in members:
            self._leader[member] = members[0]
        if across_replicas:
            self._across.update(members)

    def build(self) -> Graph[Operation]:
        """Raises DataError when operations wait for each other in a circle."""
        members: defaultdict[int, list[int]] = defaultdict(list)
        for number in self._index.values():
            members[self._leader.get(number, number)].append(number)
        after = {
            leader: {before for number in numbers for before in self._after[number]}
            for leader, numbers in members.items()
        }
        waits = {leader: {self._leader.get(b, b) for b in before} for leader, before in after.items()}
        try:
            order = tuple(TopologicalSorter(waits).static_order())
        except CycleError as error:
            names = list(self._index)
            circle = " → ".join(str(names[number]) for number in error.args[1])
            raise DataError(f"operations wait for each other in a circle: {circle}") from error
        events = tuple(
            Event(tuple(members[leader]), tuple(sorted(after[leader])), leader in self._across) for leader in order
        )
        return Graph(tuple(self._index), events)

    def _number(self, operation: Operation) -> int:
        return self._index.setdefault(operation, len(self._index))
