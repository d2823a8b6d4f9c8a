"""The ranks of all jobs at once: a cluster's health is one request, however many jobs it has."""

from __future__ import annotations

from fastapi import APIRouter

from megatronapp.gateway import views
from megatronapp.gateway.deps import GatewayParts, Now
from megatronapp.gateway.models import ENDED, WAITING, JobState, RankStatus

router = APIRouter(prefix="/ranks", tags=["jobs"])

WITHOUT_RANKS = (ENDED | WAITING) - {JobState.LOST}


@router.get("")
async def list_rank_status(gateway: GatewayParts, now: Now) -> list[RankStatus]:
    """Where the ranks of all jobs that go on, or were lost, are and whether they are heard."""
    shown = (job for job in gateway.job_store.jobs.values() if not job.hidden)
    jobs = [job for job in shown if views.job_state(job, now) not in WITHOUT_RANKS]
    return [views.rank_status(job.run, rank, now) for job in jobs for _, rank in sorted(job.ranks.items())]
