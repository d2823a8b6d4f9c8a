"""What a bus promises. Both implementations pass the same test suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Topic(StrEnum):
    STEPS = "steps"
    """RankMessage (hello, summary, heartbeat), collector → detector and gateway. Key: the run."""
    FINDINGS = "findings"
    """Finding, detector → gateway. Key: the run."""
    TRACE_CONTROL = "trace-control"
    """TraceControl, gateway → collector. Key: the run."""


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    key: str
    value: bytes
    id: str


class Bus(Protocol):
    """At-least-once delivery, in order within a key.

    Each group sees every message; within a group a message goes to one consumer. A message is delivered again to the
    group when its consumer ends before `ack`. Topics are bounded: the oldest messages are dropped when nobody reads.
    """

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        """Append one message. Raises UnavailableError when the bus can't take it now."""

    def subscribe(self, topic: str, *, group: str, consumer: str, from_start: bool = True) -> AsyncIterator[Message]:
        """Messages for this consumer; ends only by cancellation. A new group starts at the oldest kept message,
        or, without from_start, at the next one published."""

    async def ack(self, message: Message, *, group: str) -> None:
        """Never deliver this message to the group again."""

    async def ping(self) -> None:
        """Raise UnavailableError when the bus does not answer."""

    async def close(self) -> None: ...
