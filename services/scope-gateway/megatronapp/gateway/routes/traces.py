"""The spans of some steps as a file that trace viewers open."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.gateway.deps import GatewayParts, KnownJob, Parts
from megatronapp.gateway.exports import while_connected
from megatronapp.gateway.routes.ranks import Ranks, parse_ranks
from megatronapp.gateway.routes.timeline import FromAttempt, FromStep, ToStep
from megatronapp.gateway.state import TrackedJob
from megatronapp.v1 import trace_pb2

router = APIRouter(prefix="/jobs/{run}", tags=["timeline"])

MAX_STEPS = 100_000


class TraceFormat(StrEnum):
    PERFETTO = "perfetto"
    CHROME = "chrome"


Format = Annotated[TraceFormat, Query(alias="format", description="perfetto: .pftrace; chrome: trace event JSON")]

EXPORTS = {
    TraceFormat.PERFETTO: (trace_pb2.EXPORT_FORMAT_PERFETTO, "application/octet-stream", "pftrace"),
    TraceFormat.CHROME: (trace_pb2.EXPORT_FORMAT_CHROME_JSON, "application/json", "json"),
}
FILE: dict[int | str, dict[str, object]] = {
    200: {
        "description": "the trace, in pieces",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}


@router.get("/trace", response_class=StreamingResponse, responses=FILE)
async def get_trace(
    request: Request,
    job: KnownJob,
    gateway: GatewayParts,
    from_step: FromStep = 0,
    to_step: ToStep = 0,
    ranks: Ranks = "",
    attempt: FromAttempt = 0,
    trace_format: Format = TraceFormat.PERFETTO,
) -> StreamingResponse:
    """Download the spans of some steps, at most 100,000 at once."""
    if to_step - from_step >= MAX_STEPS:
        raise UsageError(f"steps {from_step} to {to_step} are more than {MAX_STEPS}; ask for fewer at a time")
    number, media_type, suffix = EXPORTS[trace_format]
    wanted = trace_pb2.ExportRequest(
        run=job.run,
        attempt=attempt,
        from_step=from_step,
        to_step=to_step,
        ranks=parse_ranks(ranks),
        format=number,
    )
    pieces = _export(gateway, wanted)
    # The first piece is awaited before the answer begins, so that a refusal has a status of its own.
    first = await while_connected(request, _next(pieces))
    if first is None:
        raise NotFoundError("no spans are stored for these steps and ranks; GET …/timeline says which steps are traced")
    name = _file_name(job, from_step, to_step, suffix)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(_chain(first, pieces), media_type=media_type, headers=headers)


async def _export(gateway: Parts, wanted: trace_pb2.ExportRequest) -> AsyncGenerator[bytes]:
    """The pieces of one of the downloads that go on at a time."""
    with gateway.exports.one():
        async with aclosing(gateway.collector.export(wanted)) as pieces:
            async for piece in pieces:
                yield piece


async def _next(pieces: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _chain(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """All pieces; a reader that leaves early ends the collector's call too."""
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


def _file_name(job: TrackedJob, from_step: int, to_step: int, suffix: str) -> str:
    """Made of what is safe in a header and in a folder."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in job.job or job.run)
    return f"{safe}-steps-{from_step or 'first'}-{to_step or 'last'}.{suffix}"
