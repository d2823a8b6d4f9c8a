"""Ranges of a message's numbers: every one is looked at by each service that it passes, and a heartbeat has fifty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from megatronapp.core.errors import DataError

Range = tuple[str, int, int]
"""A field, its least and its largest value."""

_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}


class ImplausibleError(DataError):
    """A field whose value can't be true; `reason` is a short word for counting."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Ranges:
    """Fields of one kind of message with their ranges.

    They are compiled to one expression, as namedtuple does with its fields: a loop over them takes three times as long.
    """

    def __init__(self, what: str, kind: type[Message], *ranges: Range) -> None:
        self._what, self._ranges = what, ranges
        fields = kind.DESCRIPTOR.fields_by_name
        terms = (_term(fields[name].cpp_type in _UNSIGNED, name, low, high) for name, low, high in ranges)
        self.hold: Callable[[Any], bool] = eval(f"lambda message: {' and '.join(terms)}")  # noqa: S307
        """Whether all numbers of a message are in their ranges."""

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


def _term(unsigned: bool, field: str, low: int, high: int) -> str:
    """What has no sign is never below 0."""
    return f"message.{field} <= {high}" if unsigned and low <= 0 else f"{low} <= message.{field} <= {high}"
