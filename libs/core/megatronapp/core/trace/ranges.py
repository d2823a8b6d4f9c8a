"""Ranges of a message's numbers: every one is looked at by each service that it passes, and a heartbeat has fifty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, le
from typing import Any

from megatronapp.core.errors import DataError

Range = tuple[str, int, int]
"""A field, its least and its largest value."""


class ImplausibleError(DataError):
    """A field whose value can't be true; `reason` is a short word for counting."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Ranges:
    """Fields of one kind of message with their ranges."""

    def __init__(self, what: str, *ranges: Range, hold: Callable[[Any], bool] | None = None) -> None:
        """hold: the same ranges written out, where most messages pass: looking them up takes twice as long."""
        self._what, self._ranges = what, ranges
        fields, self._low, self._high = zip(*ranges, *ranges[:1], strict=True)  # one field alone would be no tuple
        self._values = attrgetter(*fields)
        self.hold = hold or self.looked_up
        """Whether all numbers of a message are in their ranges."""

    def looked_up(self, message: Any) -> bool:
        values = self._values(message)
        return all(map(le, self._low, values)) and all(map(le, values, self._high))

    def check(self, message: Any) -> None:
        """Raises ImplausibleError."""
        if not self.hold(message):
            field, low, high = next(r for r in self._ranges if not r[1] <= getattr(message, r[0]) <= r[2])
            text = f"{self._what}: {field} is {getattr(message, field)}; it must be from {low} to {high}"
            raise ImplausibleError("number", text)

    def check_all(self, messages: Sequence[Any]) -> None:
        """Raises ImplausibleError for the first that does not hold."""
        if not all(map(self.hold, messages)):
            for message in messages:
                self.check(message)
