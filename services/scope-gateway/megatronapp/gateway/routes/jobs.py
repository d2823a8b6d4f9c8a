"""Jobs, their ranks and metrics, and the control of tracing."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from megatronapp.core.bus import Topic
from megatronapp.gateway import views
from megatronapp.gateway.deps import GatewayParts, KnownJob, Now, operator
from megatronapp.gateway.errors import ConflictError
from megatronapp.gateway.models import (
    ENDED,
    WAITING,
    Job,
    JobDetail,
    JobState,
    Metrics,
    Rank,
    TraceControl,
    TraceControlStatus,
)
from megatronapp.gateway.state import MAX_JOBS, MAX_STEPS

router = APIRouter(prefix="/jobs", tags=["jobs"])


class Sort(StrEnum):
    STARTED = "started"
    NAME = "name"
    STATE = "state"
    PROGRESS = "progress"
    LOSS = "loss"
    STEP_SECONDS = "step_seconds"
    FINDINGS = "findings"


TOTAL = "X-Total-Count"
COUNTED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {TOTAL: {"description": "jobs on all pages", "schema": {"type": "integer"}}}}
}


@router.get("", responses=COUNTED)
async def list_jobs(
    gateway: GatewayParts,
    response: Response,
    now: Now,
    state: Annotated[list[JobState] | None, Query(description="in one of these states only")] = None,
    text: Annotated[str, Query(max_length=256, description="what name, namespace or run id contain")] = "",
    sort: Annotated[Sort, Query(description="ties by start, then run")] = Sort.STARTED,
    ascending: bool = False,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = MAX_JOBS,
) -> list[Job]:
    """The jobs that are known, the one started last first: the order does not change while they run. The header
    X-Total-Count tells how many there are on all pages."""
    listed = views.job_views(gateway.job_store, now)
    chosen = [job for job in listed if (not state or job.state in state) and views.matches(job, text)]
    if sort is not Sort.STARTED or ascending:
        chosen = views.sorted_jobs(chosen, SORT_KEYS[sort], ascending=ascending)
    response.headers[TOTAL] = str(len(chosen))
    return chosen[offset : offset + limit]


SORT_KEYS: dict[Sort, Callable[[Job], float | str | None]] = {
    Sort.STARTED: lambda job: job.started_unix_seconds,
    Sort.NAME: lambda job: job.job,
    Sort.STATE: lambda job: list(JobState).index(job.state),
    Sort.PROGRESS: lambda job: job.step / job.total_steps if job.total_steps else None,
    Sort.LOSS: lambda job: job.loss,
    Sort.STEP_SECONDS: lambda job: job.step_seconds,
    Sort.FINDINGS: lambda job: job.open_findings,
}


@router.get("/{run}")
async def get_job(job: KnownJob, gateway: GatewayParts, now: Now) -> JobDetail:
    return views.job_detail(job, gateway.job_store.findings_of(job.run), now)


@router.get("/{run}/ranks")
async def list_ranks(job: KnownJob, now: Now) -> list[Rank]:
    """Where each rank stands and what it does, ordered by rank."""
    return [views.rank_view(rank, now) for _, rank in sorted(job.ranks.items())]


@router.get("/{run}/metrics")
async def get_metrics(
    job: KnownJob,
    from_step: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS, description="the newest so many steps")] = MAX_STEPS,
) -> Metrics:
    """Step time, loss and the like over the newest steps."""
    return views.metrics_view(job, from_step, limit)


@router.get("/{run}/trace-control")
async def get_trace_control(job: KnownJob, gateway: GatewayParts) -> TraceControlStatus:
    return views.control_status(job, gateway.job_store.controls.get(job.run))


@router.put("/{run}/trace-control", dependencies=[Depends(operator)])
async def put_trace_control(body: TraceControl, job: KnownJob, gateway: GatewayParts, now: Now) -> TraceControlStatus:
    """Switch detailed tracing of a running job; its ranks confirm with their next heartbeats (operators only)."""
    if views.job_state(job, now) in ENDED | WAITING:
        raise ConflictError("no rank of the job runs: there is nobody to trace")
    control = views.control_message(body)
    await gateway.bus.publish(Topic.TRACE_CONTROL, job.run, control.SerializeToString())
    gateway.job_store.apply_control(job.run, control)
    return views.control_status(job, control)
