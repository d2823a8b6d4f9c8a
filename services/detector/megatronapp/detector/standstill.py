"""What a job stood in when it was last heard, and for how long: from two heartbeats of each rank, that which first told
where the rank stands, and its newest.

A rank that says goodbye ends what can be said of the others: they are looked at as they stood then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatronapp.detector.progress import LONGEST_BEAT_SECONDS, NS, SILENT_SECONDS
from megatronapp.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class LastHeartbeats:
    """Of one rank; they are one and the same where it was moving."""

    since: trace_pb2.RankMessage
    newest: trace_pb2.RankMessage

    @property
    def closing(self) -> bool:
        return self.newest.message.heartbeat.closing

    def stood_seconds(self, until_unix_ns: int) -> float:
        """How long it had not moved then, of which no more counts than its heartbeats show."""
        seconds = (min(self.newest.received_unix_ns, until_unix_ns) - self.since.received_unix_ns) * NS
        messages = self.newest.message.seq - self.since.message.seq
        return min(seconds, LONGEST_BEAT_SECONDS * messages)


@dataclass(frozen=True, slots=True)
class Standstill:
    heartbeats: tuple[trace_pb2.RankMessage, ...]
    """In order of arrival, none of them a goodbye."""
    seconds: float
    """Nothing had moved for so long."""


def standstill(ranks: Mapping[int, LastHeartbeats]) -> Standstill | None:
    """None for a job that was moving when it was last heard."""
    if not ranks:
        return None
    goodbyes = [rank.newest.received_unix_ns for rank in ranks.values() if rank.closing]
    until = min(goodbyes) if goodbyes else max(rank.newest.received_unix_ns for rank in ranks.values())
    reporting = [r for r in ranks.values() if (until - r.newest.received_unix_ns) * NS <= SILENT_SECONDS]
    seconds = min(rank.stood_seconds(until) for rank in reporting)
    if seconds <= 0:
        return None
    beats = [_as_of(beat, until) for rank in ranks.values() for beat in (rank.since, rank.newest)]
    return Standstill(tuple(sorted(beats, key=lambda beat: beat.received_unix_ns)), seconds)


def _as_of(beat: trace_pb2.RankMessage, until_unix_ns: int) -> trace_pb2.RankMessage:
    result = trace_pb2.RankMessage()
    result.CopyFrom(beat)
    result.received_unix_ns = min(beat.received_unix_ns, until_unix_ns)
    result.message.heartbeat.closing = False
    return result
