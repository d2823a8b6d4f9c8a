"""Numbers the rank's messages, serializes each once, and hands it to every sink."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from megatronapp.v1 import trace_pb2


class Outgoing(NamedTuple):
    """A message that is ready to go."""

    seq: int
    body: str
    """batch, summary or heartbeat."""
    events: int
    """Spans of a batch; 1 for others."""
    data: bytes
    """The TraceMessage, serialized."""

    @classmethod
    def of(cls, message: trace_pb2.TraceMessage) -> Outgoing:
        body = message.WhichOneof("body") or ""
        events = message.batch.count if body == "batch" else 1
        return cls(message.seq, body, events, message.SerializeToString())


class Sink(Protocol):
    @property
    def dropped(self) -> int:
        """Events lost since the process began."""

    def put(self, message: Outgoing) -> None:
        """Take one message. Must not wait for anything outside of this machine."""

    def close(self, timeout_seconds: float) -> None: ...


class Outbox:
    """`lost` counts events that were lost before they became messages; add to it. `sent` is the newest number."""

    def __init__(self, sinks: Sequence[Sink], sent: int = 0) -> None:
        self._sinks = sinks
        self.sent = sent
        self.lost = 0

    @property
    def dropped(self) -> int:
        """Events that were lost, or that at least one sink has lost."""
        return self.lost + max((sink.dropped for sink in self._sinks), default=0)

    def put(self, message: trace_pb2.TraceMessage) -> None:
        """Gives the message its number."""
        self.sent += 1
        message.seq = self.sent
        outgoing = Outgoing.of(message)
        for sink in self._sinks:
            sink.put(outgoing)

    def close(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        for sink in self._sinks:
            sink.close(max(deadline - time.monotonic(), 0.0))
