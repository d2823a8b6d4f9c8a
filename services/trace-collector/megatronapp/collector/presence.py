"""Which ranks are connected. The bus hears of those that are gone, and of all when somebody has missed their Hellos."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from megatronapp.collector.jobs import Attempt, Jobs, Rank
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.outbox import Outbox
from megatronapp.core.bus import Bus, Topic
from megatronapp.core.logging import get_logger
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


class Presence:
    """`position` tells up to where the journal has been applied: what is said here stands behind it."""

    def __init__(
        self, bus: Bus, jobs: Jobs, outbox: Outbox, metrics: CollectorMetrics, position: Callable[[], int]
    ) -> None:
        self._bus = bus
        self._jobs = jobs
        self._outbox = outbox
        self._metrics = metrics
        self._position = position

    def connected(self, identity: trace_pb2.Identity) -> None:
        """The rank, whose Hello has been stored, has opened a stream."""
        self._jobs.get(identity.run, identity.attempt).ranks[identity.rank].streams += 1
        self._metrics.connected(identity.job, 1)

    def disconnected(self, identity: trace_pb2.Identity, *, lost: bool) -> None:
        """A stream has ended. With `lost`, the bus is told, unless the rank has ended, was replaced or is back."""
        self._metrics.connected(identity.job, -1)
        attempt = self._jobs.get(identity.run, identity.attempt)
        rank = attempt.ranks[identity.rank]
        rank.streams -= 1
        if lost and rank.process.identity == identity:
            self._report_if_gone(attempt, rank)

    async def report_missing(self, return_seconds: float) -> None:
        """Give the ranks that were there before the collector's own start time to come back, then tell of those that
        did not."""
        expected = [(attempt, number) for attempt, number, rank in self._newest() if not rank.ended]
        await asyncio.sleep(return_seconds)
        for attempt, number in expected:
            if number in attempt.ranks:
                self._report_if_gone(attempt, attempt.ranks[number])

    async def answer_hello_requests(self) -> None:
        """Publish the Hello of every connected rank whenever somebody asks, until cancelled."""
        async for _ in self._bus.follow(Topic.HELLO_REQUEST, from_start=False):
            present = [(attempt, rank) for attempt, _, rank in self._newest() if rank.streams and not rank.ended]
            for attempt, rank in present:
                self._publish(attempt, rank, _hello_again(attempt, rank))
            log.info("hello_request_answered", ranks=len(present))

    def _newest(self) -> Iterator[tuple[Attempt, int, Rank]]:
        """The ranks of each run's newest attempt."""
        newest = {attempt.run: attempt for attempt in sorted(self._jobs, key=lambda attempt: attempt.attempt)}
        for attempt in newest.values():
            for number, rank in attempt.ranks.items():
                yield attempt, number, rank

    def _report_if_gone(self, attempt: Attempt, rank: Rank) -> None:
        if not rank.ended and not rank.streams:
            self._publish(attempt, rank, attempt.lose(rank, max(time.time_ns(), rank.process.heard_unix_ns)))

    def _publish(self, attempt: Attempt, rank: Rank, message: trace_pb2.RankMessage) -> None:
        """One rank that can't be told of must not silence the others."""
        try:
            self._outbox.put(self._position(), attempt.run, message.SerializeToString())
        except Exception:
            log.exception("rank_not_told", run=attempt.run, rank=rank.process.rank)


def _hello_again(attempt: Attempt, rank: Rank) -> trace_pb2.RankMessage:
    hello = rank.hello_snapshot(attempt.membership.recipe_of(rank.process.rank))
    return trace_pb2.RankMessage(
        identity=rank.process.identity,
        message=trace_pb2.TraceMessage(hello=hello),
        received_unix_ns=max(time.time_ns(), rank.process.hello_unix_ns),
        clock_error_ns=-1,
    )
