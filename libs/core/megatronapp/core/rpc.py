"""gRPC servers: our errors as statuses, and what every server of ours is opened with."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from errno import EADDRINUSE
from typing import Any

import grpc
from grpc import aio

from megatronapp.core.errors import (
    AuthError,
    DataError,
    ForbiddenError,
    MegatronAppError,
    NotFoundError,
    PortInUseError,
    UnavailableError,
)
from megatronapp.core.tls import ServerTls
from megatronapp.core.trace.ranges import ImplausibleError

Statuses = Mapping[type[MegatronAppError], tuple[grpc.StatusCode, str]]

STATUS: Statuses = {
    AuthError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    ForbiddenError: (grpc.StatusCode.PERMISSION_DENIED, "forbidden"),
    DataError: (grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    ImplausibleError: (grpc.StatusCode.INVALID_ARGUMENT, "implausible"),
    NotFoundError: (grpc.StatusCode.NOT_FOUND, "not_found"),
    UnavailableError: (grpc.StatusCode.UNAVAILABLE, "unavailable"),
}


@asynccontextmanager
async def aborting(context: Any, refused: Callable[[str], None], statuses: Statuses = STATUS) -> AsyncIterator[None]:
    """End the call with the status of an expected error, after telling `refused` its reason. The nearest
    class in `statuses` counts."""
    try:
        yield
    except tuple(statuses) as error:
        code, reason = next(statuses[kind] for kind in type(error).__mro__ if kind in statuses)
        refused(f"{reason}_{error.reason}" if isinstance(error, ImplausibleError) else reason)
        await context.abort(code, str(error))


def make_server(max_message_bytes: int) -> aio.Server:
    return aio.server(
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.so_reuseport", 0),
        ]
    )


def listen(server: aio.Server, host: str, port: int, flag: str, tls: ServerTls | None) -> int:
    """The port, before the server starts; `flag` chooses another. Raises PortInUseError, and ConfigError for
    certificates that can't be used."""
    _check_free(host, port, flag)
    address = f"{host}:{port}"
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls.credentials())


def _check_free(host: str, port: int, flag: str) -> None:
    """gRPC prints lines of its own when it can't listen."""
    address = host.strip("[]")
    try:
        socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError as error:
        raise PortInUseError(host, port, flag, os.strerror(error.errno or EADDRINUSE)) from error
