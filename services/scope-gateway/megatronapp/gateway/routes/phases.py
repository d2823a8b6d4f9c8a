"""Where the operator tells how TrainingJobs stand."""

from __future__ import annotations

from fastapi import APIRouter, Depends, status

from megatronapp.core.bus import Topic
from megatronapp.gateway.deps import GatewayParts, job_operator
from megatronapp.gateway.phases import KEY, JobPhases

router = APIRouter(prefix="/jobs/phases", tags=["jobs"])


@router.patch("", status_code=status.HTTP_204_NO_CONTENT, dependencies=[Depends(job_operator)])
async def patch_phases(body: JobPhases, gateway: GatewayParts) -> None:
    """Phases of TrainingJobs, also of those that no rank was heard of yet; every replica hears of them."""
    await gateway.bus.publish(Topic.PHASES, KEY, body.model_dump_json().encode())
