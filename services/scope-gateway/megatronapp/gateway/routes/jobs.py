"""Jobs, their ranks and metrics, and the control of tracing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from megatronapp.core.bus import Topic
from megatronapp.gateway import views
from megatronapp.gateway.deps import GatewayParts, KnownJob, Now, operator
from megatronapp.gateway.errors import ConflictError
from megatronapp.gateway.models import ENDED, Job, JobDetail, Metrics, Rank, TraceControl, TraceControlStatus
from megatronapp.gateway.state import MAX_STEPS

router = APIRouter(prefix="/jobs", tags=["jobs"])


@router.get("")
async def list_jobs(gateway: GatewayParts, now: Now) -> list[Job]:
    """All jobs that are known, the one heard last first."""
    return views.job_views(gateway.job_store, now)


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
    if views.job_state(job, now) in ENDED:
        raise ConflictError("the job has ended: nobody is left to trace")
    control = views.control_message(body)
    await gateway.bus.publish(Topic.TRACE_CONTROL, job.run, control.SerializeToString())
    gateway.job_store.apply_control(job.run, control)
    return views.control_status(job, control)
