"""What the detector found."""

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
    """Open findings first, then by when they opened, newest first."""
    chosen = (
        finding
        for finding in gateway.job_store.findings.values()
        if (run is None or finding.run == run) and (state is None or finding.state is state)
    )
    return sorted(chosen, key=lambda finding: (finding.state is not State.OPEN, -finding.opened_unix_ns))


@router.get("/{id}")
async def get_finding(gateway: GatewayParts, finding_id: Annotated[str, Path(alias="id", max_length=256)]) -> Finding:
    found = gateway.job_store.findings.get(finding_id)
    if found is None:
        raise NotFoundError(f"there is no finding {finding_id!r}")
    return found
