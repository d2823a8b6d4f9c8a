"""Events of a rank on their way to the gateway, and those that it may have to be told again.

A gateway says with its first message which events it has. One that was killed may have none: so events stay here after
they were sent, the newest of them, and what it lacks goes out again before anything new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from megatronapp.v1 import scope_pb2

MAX_EVENTS = 2048
MAX_BYTES = 32 << 20
"""As many as the gateway keeps of a run."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    message: scope_pb2.ScopeUp
    size: int


class EventLog:
    """Numbers count from 1. Not guarded: for callers that hold a lock."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events, self._max_bytes = max_events, max_bytes
        self._kept: deque[_Numbered] = deque()
        self._bytes = 0
        self._newest = 0
        self._known = 0
        """Number of the newest that the gateway has, or was sent on this connection."""
        self.lost = 0
        """Events that no gateway was ever sent, as more came than are kept."""

    def add(self, event: scope_pb2.ScopeEvent) -> None:
        self._newest += 1
        message = scope_pb2.ScopeUp(event=event, event_number=self._newest)
        size = message.ByteSize()
        self._kept.append(_Numbered(self._newest, message, size))
        self._bytes += size
        while len(self._kept) > self._max_events or (self._bytes > self._max_bytes and len(self._kept) > 1):
            oldest = self._kept.popleft()
            self._bytes -= oldest.size
            self.lost += oldest.number > self._known

    def begin(self, received: int) -> None:
        """A gateway has what came up to this number."""
        self._known = min(received, self._newest)

    @property
    def waits(self) -> bool:
        return self._known < self._newest

    def next(self) -> scope_pb2.ScopeUp | None:
        """The first one that the gateway has not, which it is sent now."""
        if not self.waits:
            return None
        first = self._kept[0].number
        found = self._kept[max(self._known + 1 - first, 0)]
        self._known = found.number
        return found.message
