"""ScopeIngest: the stream of one rank. Hello first; then frames, events and answers up, demand and commands down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from megatronapp.core.auth import Authenticator, PodClaim, bearer
from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.rpc import aborting
from megatronapp.core.trace.validate import check_identity
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope.producers import Producer
from megatronapp.gateway.scope.relay import first_of
from megatronapp.gateway.scope.replicas import ElsewhereError, Place
from megatronapp.gateway.scope.sessions import Session
from megatronapp.v1 import scope_pb2, trace_pb2

log = get_logger(__name__)

HELLO_SECONDS = 30.0
_END = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out
Context = Any
"""grpc.aio.ServicerContext of raw request bytes and ScopeDown."""

OpenSession = Callable[[trace_pb2.Identity, bool], Awaitable[Session]]
"""The session of a run, made where this rank's word for the run is good (the second argument). Raises ForbiddenError,
UnavailableError, and ElsewhereError for a run of another replica."""
PassOn = Callable[[Place, bytes, "Context"], Awaitable[None]]
"""A stream to the replica that has the run, given its hello."""


class ScopeIngest:
    def __init__(
        self,
        open_session: OpenSession,
        pass_on: PassOn,
        authenticator: Authenticator,
        metrics: ScopeMetrics,
        max_frame_bytes: int,
    ) -> None:
        self._open_session = open_session
        self._pass_on = pass_on
        self._authenticator = authenticator
        self._metrics = metrics
        self._max_frame_bytes = max_frame_bytes

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        method = grpc.stream_stream_rpc_method_handler(self._attach, response_serializer=_serialized)
        return grpc.method_handlers_generic_handler("megatronapp.v1.ScopeIngest", {"Attach": method})

    async def _attach(self, _requests: Any, context: Context) -> None:
        async with aborting(context, self._refused):
            data = await self._first(context)
            try:
                producer, session = await self._hello(data, context)
            except ElsewhereError as elsewhere:
                await self._pass_on(elsewhere.place, data, context)
                return
            self._metrics.ranks.inc()
            try:
                accepted = scope_pb2.ScopeAccepted(
                    max_frame_bytes=self._max_frame_bytes, received_events=session.received(producer)
                )
                await context.write(scope_pb2.ScopeDown(accepted=accepted))
                await self._serve(producer, session, context)
            finally:
                session.detach(producer)
                self._metrics.ranks.dec()
                log.info("scope_rank_left", job=producer.identity.job, rank=producer.rank)

    async def _first(self, context: Context) -> bytes:
        try:
            data = await asyncio.wait_for(context.read(), HELLO_SECONDS)
        except TimeoutError as error:
            raise DataError("no hello came; a stream begins with one") from error
        return b"" if data is _END else data

    async def _hello(self, data: bytes, context: Context) -> tuple[Producer, Session]:
        message = _parsed(data)
        if not message.HasField("hello"):
            raise DataError("a stream begins with a hello")
        identity = message.hello.identity
        check_identity(identity)
        claim = PodClaim(identity.job, identity.run, identity.attempt, message.hello.placement.node)
        grant = await self._authenticator.pod(bearer(context.invocation_metadata()), claim)
        producer = Producer(message.hello)
        session = await self._open_session(identity, grant.may_open_run)
        session.attach(producer)
        log.info("scope_rank_connected", job=identity.job, attempt=identity.attempt, rank=identity.rank)
        return producer, session

    async def _serve(self, producer: Producer, session: Session, context: Context) -> None:
        """Both ways at once; the first side that ends, ends both."""
        await first_of(self._read(producer, session, context), _write(producer, context))

    async def _read(self, producer: Producer, session: Session, context: Context) -> None:
        while (data := await context.read()) is not _END:
            message = _parsed(data)
            match message.WhichOneof("body"):
                case "frame":
                    session.take_frame(producer, message.frame)
                case "event":
                    session.take_event(producer, message.event, message.event_number)
                case "ack":
                    session.take_ack(producer, message.ack)
                case "in_force":
                    session.take_in_force(producer, message.in_force.revision)
                case "sites":
                    session.take_sites(producer, message.sites)
                case "hello":
                    raise DataError("a hello comes once")
                case _:
                    pass  # a newer rank's

    def _refused(self, reason: str) -> None:
        self._metrics.refused_streams.labels(reason).inc()
        log.warning("scope_stream_refused", reason=reason)


async def _write(producer: Producer, context: Context) -> None:
    while (message := await producer.next()) is not None:
        await context.write(message)


def _serialized(message: scope_pb2.ScopeDown | bytes) -> bytes:
    """What is passed on comes serialized."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def _parsed(data: bytes) -> scope_pb2.ScopeUp:
    try:
        return scope_pb2.ScopeUp.FromString(data)
    except DecodeError as error:
        raise DataError("a message that is no ScopeUp") from error
