"""What comes to one replica of the gateway for a run that another one owns: passed on, both ways, as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from megatronapp.core.auth import Role, bearer
from megatronapp.core.errors import AuthError, DataError, UnavailableError
from megatronapp.core.rpc import aborting
from megatronapp.core.tls import open_channel
from megatronapp.gateway.scope.replicas import RELAYED, Place, Replicas
from megatronapp.gateway.scope.tickets import Admission
from megatronapp.v1 import scope_pb2

MAX_MESSAGE_BYTES = 8 << 20
ATTACH = "/megatronapp.v1.ScopeIngest/Attach"
WATCH = "/megatronapp.v1.ScopeRelay/Watch"
END = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out
Context = Any
"""grpc.aio.ServicerContext."""
Call = Any
"""grpc.aio.StreamStreamCall."""
Serve = Callable[["RelayedSocket", Admission], Awaitable[None]]


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """All at once; the first that ends, ends all. Raises what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def dialled(replicas: Replicas, place: Place, method: str, token: str) -> AsyncIterator[Call]:
    """A stream of bytes to another replica."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # A replica that is gone without a word: its node failed.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
    ]
    if replicas.tls_name:
        options.append(("grpc.ssl_target_name_override", replicas.tls_name))
    async with open_channel(place.grpc_address, replicas.tls, options) as channel:
        streams: Any = channel.stream_stream  # its stubs know no streams of bytes
        call: Call = streams(method)(metadata=[("authorization", f"Bearer {token}"), (RELAYED, "1")])
        try:
            yield call
        finally:
            call.cancel()


def is_relayed(context: Context) -> bool:
    return any(key == RELAYED for key, _ in context.invocation_metadata() or ())


async def pass_rank_on(replicas: Replicas, place: Place, hello: bytes, context: Context) -> None:
    """A rank's stream, under its own token, until one side ends it. Raises UnavailableError where it was passed on
    already."""
    if is_relayed(context):
        raise UnavailableError("the run changes hands just now; try again")
    try:
        async with dialled(replicas, place, ATTACH, bearer(context.invocation_metadata())) as call:
            await call.write(hello)
            await first_of(_copy(context, call), _copy(call, context))
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            raise UnavailableError("the replica that has this run does not answer; try again") from error
        await context.abort(error.code(), error.details())


async def _copy(source: Any, sink: Any) -> None:
    while (data := await source.read()) is not END:
        await sink.write(data)


class ViewerRelay:
    """The owner's side of a viewer's WebSocket."""

    def __init__(self, replicas: Replicas, serve: Serve) -> None:
        self._replicas, self._serve = replicas, serve

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        method = grpc.stream_stream_rpc_method_handler(
            self._watch, response_serializer=scope_pb2.ScopeRelayDown.SerializeToString
        )
        return grpc.method_handlers_generic_handler("megatronapp.v1.ScopeRelay", {"Watch": method})

    async def _watch(self, _requests: Any, context: Context) -> None:
        async with aborting(context, lambda _: None):
            token = bearer(context.invocation_metadata())
            if not compare_digest(token.encode(), self._replicas.secret.encode()):
                raise AuthError("only replicas of this gateway may pass viewers on: they share its session key")
            data = await context.read()
            up = _up(data) if data is not END else scope_pb2.ScopeRelayUp()
            if not up.HasField("viewer"):
                raise DataError("the first message says whose WebSocket it is")
            await self._serve(RelayedSocket(context), _admission(up.viewer))


class RelayedSocket:
    """A viewer's WebSocket that another replica holds; as starlette's WebSocket."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def receive(self) -> dict[str, Any]:
        data = await self._context.read()
        if data is END:
            return {"type": "websocket.disconnect"}
        return {"type": "websocket.receive", "text": _up(data).text}

    async def send(self, message: dict[str, Any]) -> None:
        await self._context.write(scope_pb2.ScopeRelayDown(text=message.get("text"), frame=message.get("bytes")))

    async def close(self, code: int, reason: str) -> None:
        await self._context.write(scope_pb2.ScopeRelayDown(close=scope_pb2.ScopeRelayClose(code=code, reason=reason)))


@asynccontextmanager
async def watching(replicas: Replicas, place: Place, admission: Admission) -> AsyncIterator[Call]:
    """The holder's side: a stream of ScopeRelayUp and ScopeRelayDown, as bytes."""
    viewer = scope_pb2.ScopeRelayViewer(
        role=admission.role.value, name=admission.name, expires_unix_seconds=admission.expires_unix_seconds
    )
    async with dialled(replicas, place, WATCH, replicas.secret) as call:
        await call.write(scope_pb2.ScopeRelayUp(viewer=viewer).SerializeToString())
        yield call


def _admission(viewer: scope_pb2.ScopeRelayViewer) -> Admission:
    try:
        role = Role(viewer.role)
    except ValueError as error:
        raise DataError("a role that is none") from error
    expires = viewer.expires_unix_seconds if viewer.HasField("expires_unix_seconds") else None
    return Admission(role, viewer.name, expires)


def _up(data: bytes) -> scope_pb2.ScopeRelayUp:
    try:
        return scope_pb2.ScopeRelayUp.FromString(data)
    except DecodeError as error:
        raise DataError("a message that is no ScopeRelayUp") from error
