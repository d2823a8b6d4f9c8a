"""Steps of all ranks on one clock, and how good that clock is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from megatronapp.core.trace.limits import MAX_STEP
from megatronapp.gateway import columns
from megatronapp.gateway.collector import timeline_columns, timeline_document
from megatronapp.gateway.deps import GatewayParts, KnownJob
from megatronapp.gateway.exports import while_connected
from megatronapp.gateway.models import Clock, Timeline

router = APIRouter(prefix="/jobs/{run}", tags=["timeline"])

MAX_ROWS = 200_000

FromStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="first step")]
ToStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="last step, inclusive; 0: the newest")]


@router.get("/timeline", response_model=Timeline, responses={200: {"content": {columns.MEDIA_TYPE: {}}}})
async def get_timeline(
    request: Request,
    job: KnownJob,
    gateway: GatewayParts,
    from_step: FromStep = 0,
    to_step: ToStep = 0,
    limit: Annotated[int, Query(ge=1, le=2_000, description="the newest so many steps")] = 200,
) -> Response:
    """One row per step and rank, as columns; of numbers as bytes for whoever accepts them. Jobs of many ranks get fewer
    steps at once, at most 200,000 rows."""
    ranks = max(1, job.sizes.world, len(job.ranks))
    asked = gateway.collector.steps(job.run, from_step, to_step, min(limit, max(1, MAX_ROWS // ranks)))
    answer = await while_connected(request, asked)
    if columns.MEDIA_TYPE in request.headers.get("accept", ""):
        origin, table = timeline_columns(answer)
        return Response(columns.encode({"origin_unix_seconds": origin}, table), media_type=columns.MEDIA_TYPE)
    # Up to a million numbers: written without a model's validation in between.
    return Response(to_json(timeline_document(answer)), media_type="application/json")


@router.get("/clocks")
async def list_clocks(request: Request, job: KnownJob, gateway: GatewayParts) -> list[Clock]:
    return await while_connected(request, gateway.collector.clocks(job.run))
