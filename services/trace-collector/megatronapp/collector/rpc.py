"""Our errors as gRPC statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from megatronapp.collector.job_limit import TooManyJobsError
from megatronapp.core.errors import (
    AuthError,
    DataError,
    ForbiddenError,
    MegatronAppError,
    NotFoundError,
    UnavailableError,
)
from megatronapp.core.trace.ranges import ImplausibleError

STATUS: dict[type[MegatronAppError], tuple[grpc.StatusCode, str]] = {
    AuthError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    ForbiddenError: (grpc.StatusCode.PERMISSION_DENIED, "forbidden"),
    DataError: (grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    ImplausibleError: (grpc.StatusCode.INVALID_ARGUMENT, "implausible"),
    NotFoundError: (grpc.StatusCode.NOT_FOUND, "not_found"),
    TooManyJobsError: (grpc.StatusCode.UNAVAILABLE, "too_many_jobs"),
    UnavailableError: (grpc.StatusCode.UNAVAILABLE, "unavailable"),
}


@asynccontextmanager
async def aborting(context: Any, refused: Callable[[str], None]) -> AsyncIterator[None]:
    """End the call with the status of an expected error, after telling `refused` its reason."""
    try:
        yield
    except tuple(STATUS) as error:
        code, reason = STATUS[type(error)]
        refused(f"{reason}_{error.reason}" if isinstance(error, ImplausibleError) else reason)
        await context.abort(code, str(error))
