"""What the detector found: of the jobs that are listed as the bus tells it, of earlier ones out of the store."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from megatronapp.core.errors import NotFoundError
from megatronapp.core.findings import Finding, State
from megatronapp.gateway.deps import GatewayParts

router = APIRouter(prefix="/findings", tags=["findings"])


@router.get("")
async def list_findings(
    gateway: GatewayParts,
    run: Annotated[str | None, Query(max_length=256, description="of one job only")] = None,
    state: Annotated[State | None, Query(description="in this state only")] = None,
) -> list[Finding]:
    """Open findings first, then by when they opened, newest first. Without `run` those of the jobs that are listed."""
    known = gateway.job_store
    if run is None or run in known.jobs:
        found = list(known.findings.values()) if run is None else known.findings_of(run)
    else:
        found = await gateway.findings.find(run=run) or known.findings_of(run)
    chosen = (finding for finding in found if state is None or finding.state is state)
    return sorted(chosen, key=lambda finding: (finding.state is not State.OPEN, -finding.opened_unix_ns))


@router.get("/{id}")
async def get_finding(gateway: GatewayParts, finding_id: Annotated[str, Path(alias="id", max_length=256)]) -> Finding:
    found = gateway.job_store.findings.get(finding_id) or await gateway.findings.get(finding_id)
    if found is None:
        raise NotFoundError(f"there is no finding {finding_id!r}, or it was found too long ago")
    return found
