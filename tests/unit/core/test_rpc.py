"""Errors become the status of their nearest known class."""

from typing import Any

import grpc
import pytest

from megatronapp.core.errors import DataError, ForbiddenError, MegatronAppError, UsageError
from megatronapp.core.rpc import aborting
from megatronapp.core.scope.frame import FrameError


class Context:
    status: tuple[grpc.StatusCode, str] | None = None

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = code, details


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (DataError("a"), grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
        (FrameError("a"), grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
        (ForbiddenError("a"), grpc.StatusCode.PERMISSION_DENIED, "forbidden"),
    ],
)
async def test_an_expected_error_ends_the_call_with_its_status(
    error: MegatronAppError, code: grpc.StatusCode, reason: str
) -> None:
    context: Any = Context()
    reasons: list[str] = []

    async with aborting(context, reasons.append):
        raise error

    assert (context.status, reasons) == ((code, "a"), [reason])


async def test_another_error_is_the_servers_own() -> None:
    with pytest.raises(UsageError):
        async with aborting(Context(), lambda _: None):
            raise UsageError("a")
