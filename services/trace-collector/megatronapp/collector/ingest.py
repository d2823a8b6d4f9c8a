"""TraceIngest: the stream of one rank. Hello first; then every message goes to the journal and is acknowledged."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import grpc
from grpc import aio

from megatronapp.collector.control import Controls
from megatronapp.collector.job_limit import TooManyJobsError
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.pipeline import Pipeline
from megatronapp.collector.presence import Presence
from megatronapp.collector.received import Received, Sender, from_wire, parse, unbundled
from megatronapp.collector.replies import Replies
from megatronapp.core.auth import Authenticator, PodClaim, bearer
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.rpc import STATUS, aborting
from megatronapp.core.trace.columns import NOTHING
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.core.trace.validate import check_identity
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

HELLO_SECONDS = 30.0
"""A stream that does not say who it is by then is closed."""

STATUSES = {**STATUS, TooManyJobsError: (grpc.StatusCode.UNAVAILABLE, "too_many_jobs")}

_END = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out

Context = Any
"""grpc.aio.ServicerContext of raw request bytes and TraceReply."""


class TraceIngest:
    """Requests stay bytes: they are parsed once, checked, and go to the journal as they came."""

    def __init__(
        self,
        pipeline: Pipeline,
        presence: Presence,
        controls: Controls,
        authenticator: Authenticator,
        metrics: CollectorMetrics,
    ) -> None:
        self._pipeline = pipeline
        self._presence = presence
        self._controls = controls
        self._authenticator = authenticator
        self._metrics = metrics
        self.stopping = False

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        method = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=trace_pb2.TraceReply.SerializeToString
        )
        return grpc.method_handlers_generic_handler("megatronapp.v1.TraceIngest", {"Stream": method})

    async def _stream(self, _requests: Any, context: Context) -> None:
        async with aborting(context, self._refused, STATUSES):
            hello = await self._hello(context)
            replies = Replies(context.write)
            self._controls.join(hello.identity.run, replies)
            self._presence.connected(hello.identity)
            try:
                await self._serve(hello, replies, context)
            finally:
                self._controls.leave(hello.identity.run, replies)
                self._presence.disconnected(hello.identity, lost=not self.stopping)

    async def _hello(self, context: Context) -> Received:
        """Who is speaking: admitted, and in the journal when this returns."""
        try:
            data = await asyncio.wait_for(context.read(), HELLO_SECONDS)
        except TimeoutError as error:
            raise DataError("no Hello came; a stream begins with one") from error
        if data is _END:
            raise DataError("the stream ended before its Hello")
        message = parse(data)
        if not message.HasField("hello"):
            raise DataError("a stream begins with Hello")
        identity = message.hello.identity
        check_identity(identity)
        arrival_ns = self._pipeline.arrival_of_hello(identity, time.time_ns())
        received = from_wire(Sender.of(identity), (message, NOTHING), data, arrival_ns)
        claim = PodClaim(identity.job, identity.run, identity.attempt, message.hello.placement.node)
        grant = await self._authenticator.pod(bearer(context.invocation_metadata()), claim)
        self._pipeline.admit(identity, may_open_run=grant.may_open_run)
        await self._pipeline.store(received)
        if not self._pipeline.knows(identity):
            # Of two jobs that open a run at once, the journal's order decides.
            self._pipeline.admit(identity, may_open_run=grant.may_open_run)
            raise DataError("this Hello can't be taken in and was set aside; the collector's log says why")
        log.info("rank_connected", job=identity.job, attempt=identity.attempt, rank=identity.rank)
        return received

    async def _serve(self, hello: Received, replies: Replies, context: Context) -> None:
        """Read to the end of the stream while acknowledging; the first side that fails ends both."""
        reading = asyncio.create_task(self._read(hello.sender, replies, context))
        replying = asyncio.create_task(replies.run())
        try:
            await asyncio.wait({reading, replying}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                replies.close()
            await replying
            await reading
        finally:
            for task in (reading, replying):
                task.cancel()
            await asyncio.gather(reading, replying, return_exceptions=True)

    async def _read(self, sender: Sender, replies: Replies, context: Context) -> None:
        last = 0
        while (data := await context.read()) is not _END:
            try:
                for read, own in unbundled(data):
                    received = _following(last, from_wire(sender, read, own, time.time_ns()))
                    last = received.message.seq
                    await self._take(received, replies)
            except DataError:
                context.set_trailing_metadata(((REFUSED_AFTER, str(last)),))
                raise

    async def _take(self, received: Received, replies: Replies) -> None:
        seq = received.message.seq
        replies.expect()
        if self._pipeline.seen(received.sender.key, seq):
            self._metrics.of(received.identity.job).duplicates.inc()
            replies.settle(seq)
            return
        done = partial(replies.settle, seq)
        try:
            await self._pipeline.submit(received, done)
        except UnavailableError as error:
            done(error)

    def _refused(self, reason: str) -> None:
        self._metrics.refused.labels(reason=reason).inc()
        log.warning("stream_refused", reason=reason)


def _following(last: int, received: Received) -> Received:
    """The message, when its seq is larger than `last`. Raises DataError."""
    seq = received.message.seq
    if seq <= last:
        raise DataError(f"seq {seq} after {last}; it grows by one with each message, and Hello comes once")
    return received
