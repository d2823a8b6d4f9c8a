"""Our errors as gRPC statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from megatronapp.core.errors import AuthError, DataError, MegatronAppError, NotFoundError, UnavailableError

STATUS: dict[type[MegatronAppError], tuple[grpc.StatusCode, str]] = {
    AuthError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    DataError: (grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    NotFoundError: (grpc.StatusCode.NOT_FOUND, "not_found"),
    UnavailableError: (grpc.StatusCode.UNAVAILABLE, "unavailable"),
}


@asynccontextmanager
async def aborting(context: Any, refused: Callable[[str], None]) -> AsyncIterator[None]:
    """End the call with the status of an expected error, after telling `refused` its reason."""
    try:
        yield
    except tuple(STATUS) as error:
        code, reason = STATUS[type(error)]
        refused(reason)
        await context.abort(code, str(error))
