"""Steps of all ranks on one clock, and how good that clock is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from megatronapp.core.trace.limits import MAX_ATTEMPT, MAX_STEP
from megatronapp.gateway import columns
from megatronapp.gateway.collector import grid_columns, timeline_document
from megatronapp.gateway.deps import GatewayParts, KnownJob
from megatronapp.gateway.exports import while_connected
from megatronapp.gateway.models import Clock, Timeline
from megatronapp.gateway.routes.ranks import Ranks, parse_ranks
from megatronapp.v1 import trace_pb2

router = APIRouter(prefix="/jobs/{run}", tags=["timeline"])

MAX_ROWS = 200_000
MAX_BUCKETS = 10_000
MAX_CELLS = 1 << 20
FEWEST_BUCKETS = 32

FromStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="first step")]
ToStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="last step, inclusive; 0: the newest")]


FromAttempt = Annotated[int, Query(ge=0, le=MAX_ATTEMPT, description="attempt of the job; 0: the newest")]
Buckets = Annotated[int, Query(ge=1, le=MAX_BUCKETS, description="so many buckets at most")]
Cells = Annotated[int, Query(ge=1, le=MAX_CELLS, description="so many at most, a cell for each rank and bucket")]
BucketSteps = Annotated[int, Query(ge=0, le=MAX_STEP, description="a power of two; 0: as few as `buckets` allows")]
GRID: dict[int | str, dict[str, object]] = {
    200: {
        "description": "columns of numbers as bytes",
        "content": {columns.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/timeline", response_model=Timeline)
async def get_timeline(
    request: Request,
    job: KnownJob,
    gateway: GatewayParts,
    from_step: FromStep = 0,
    to_step: ToStep = 0,
    limit: Annotated[int, Query(ge=1, le=2_000, description="the newest so many steps")] = 200,
    attempt: FromAttempt = 0,
) -> Response:
    """One row per step and rank, as columns. Jobs of many ranks get fewer steps at once, at most 200,000 rows."""
    ranks = max(1, job.sizes.world, len(job.ranks))
    wanted = trace_pb2.ListStepsRequest(
        run=job.run,
        attempt=attempt,
        from_step=from_step,
        to_step=to_step,
        limit=min(limit, max(1, MAX_ROWS // ranks)),
    )
    answer = await while_connected(request, gateway.collector.steps(wanted))
    # Up to a million numbers: written without a model's validation in between.
    return Response(to_json(timeline_document(answer)), media_type="application/json")


@router.get("/timeline/grid", response_class=Response, responses=GRID)
async def get_timeline_grid(
    request: Request,
    job: KnownJob,
    gateway: GatewayParts,
    from_step: FromStep = 0,
    to_step: ToStep = 0,
    ranks: Ranks = "",
    buckets: Buckets = 512,
    cells: Cells = 1 << 18,
    bucket_steps: BucketSteps = 0,
    attempt: FromAttempt = 0,
) -> Response:
    """What a picture is drawn from: steps in buckets of a power of two, per rank, as bytes (gateway/columns.py).

    Bucket i holds the steps from `first_step + i * bucket_steps` on. Cells are ordered by bucket, then rank; NaN where
    a rank has told none of a bucket's steps. Values of a cell are means over its steps.
    """
    numbers = parse_ranks(ranks)
    rows = max(1, len(numbers) or max(job.sizes.world, len(job.ranks)))
    wanted = trace_pb2.ListStepGridRequest(
        run=job.run,
        attempt=attempt,
        from_step=from_step,
        to_step=to_step,
        ranks=numbers,
        max_buckets=min(buckets, max(FEWEST_BUCKETS, cells // rows)),
        bucket_steps=bucket_steps,
    )
    values, table = grid_columns(await while_connected(request, gateway.collector.step_grid(wanted)))
    return Response(columns.encode(values, table), media_type=columns.MEDIA_TYPE)


@router.get("/clocks")
async def list_clocks(request: Request, job: KnownJob, gateway: GatewayParts) -> list[Clock]:
    return await while_connected(request, gateway.collector.clocks(job.run))
