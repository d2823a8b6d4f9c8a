"""Numbers the rank's messages and hands each to every sink."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from megatronapp.v1 import trace_pb2


class Sink(Protocol):
    @property
    def dropped(self) -> int:
        """Events lost since the process began."""

    def put(self, message: trace_pb2.TraceMessage) -> None:
        """Take one message. Must not wait for anything outside of this machine."""

    def close(self, timeout_seconds: float) -> None: ...


class Outbox:
    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._lock = threading.Lock()
        self._sinks = sinks
        self._seq = 0

    @property
    def dropped(self) -> int:
        """Events that at least one sink has lost."""
        return max((sink.dropped for sink in self._sinks), default=0)

    def put(self, message: trace_pb2.TraceMessage) -> None:
        """From any side thread. Gives the message its number."""
        with self._lock:
            self._seq += 1
            message.seq = self._seq
            for sink in self._sinks:
                sink.put(message)

    def close(self, timeout_seconds: float) -> None:
        for sink in self._sinks:
            sink.close(timeout_seconds)
