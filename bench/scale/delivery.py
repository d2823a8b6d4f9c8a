"""Delivery: messages between a rank and the detector that are lost, late or doubled, and ranks that fall silent.

A stream keeps its order and its messages while it lasts; what is lost is what an agent had to drop, or a process that
died took along. The bus delivers at least once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from bench.scale.job import NS, Job
from bench.scale.seeds import generator
from megatronapp.v1 import trace_pb2


@dataclass(frozen=True)
class Delivery:
    lost: float = 0.0
    """Share of the messages."""
    late: float = 0.0
    late_seconds: float = 10.0
    """Mean of an exponential."""
    doubled: float = 0.0

    def begin(self, job: Job) -> Way:
        return Way(self, job)


class Way:
    """Messages of a job that are on their way."""

    def __init__(self, delivery: Delivery, job: Job) -> None:
        self._delivery, self._faults = delivery, job.spec.faults
        self._random = generator(job.seed, "delivery")
        self._waiting: list[tuple[int, int, trace_pb2.RankMessage]] = []
        self._sent = 0

    def send(self, step: int, message: trace_pb2.RankMessage) -> None:
        """A step's summary; received_unix_ns is when it was sent."""
        of, chance = self._delivery, self._random.random(3)
        silent = any(f.silent and message.identity.rank in f.ranks and f.size(step) for f in self._faults)
        if silent or chance[0] < of.lost:
            return
        delay = self._random.exponential(of.late_seconds) if chance[1] < of.late else 0.0
        self._put(message, delay)
        if chance[2] < of.doubled:
            copy = trace_pb2.RankMessage()
            copy.CopyFrom(message)
            self._put(copy, float(self._random.exponential(1.0)))

    def _put(self, message: trace_pb2.RankMessage, delay: float) -> None:
        message.received_unix_ns += int(delay * NS)
        self._sent += 1
        heapq.heappush(self._waiting, (message.received_unix_ns, self._sent, message))

    def arrived(self, now: int) -> Iterator[trace_pb2.RankMessage]:
        """In order of arrival."""
        while self._waiting and self._waiting[0][0] <= now:
            yield heapq.heappop(self._waiting)[2]
