"""Between whoever asks a model and the ranks that answer: requests and controls go in, events come out.

A Port has no transport of its own to offer or to demand: the scope plug-in's is its agent's stream, a program's its
standard input and output, a test's a list.
"""

from __future__ import annotations

from typing import Protocol

from megatronapp.core.generation import Command, Event


class PortClosedError(Exception):
    """Nobody will ask any more."""


class Port(Protocol):
    """Both are called on rank 0, by the thread that generates."""

    def next_command(self, timeout_seconds: float) -> Command | None:
        """What came in, waited for so long; None when nothing did. A request needs an id that no other one under way
        has: else it is refused in an event with an empty id. Raises PortClosedError, and then again each time."""
        ...

    def emit(self, event: Event) -> None:
        """Must return at once and not raise: the model waits. The events of a request begin with Started, if it is not
        refused or cancelled before, and end with Finished."""
        ...
