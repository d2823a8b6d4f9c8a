"""What the detector found: of the jobs that are listed as the bus tells it, of earlier ones out of the store."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from megatronapp.core.bus import Topic
from megatronapp.core.errors import NotFoundError
from megatronapp.core.findings import REFUTABLE, Finding, State
from megatronapp.gateway.deps import GatewayParts, Now, Parts, operator
from megatronapp.gateway.errors import ConflictError
from megatronapp.v1 import findings_pb2

router = APIRouter(prefix="/findings", tags=["findings"])

FindingId = Annotated[str, Path(alias="id", max_length=256)]


@router.get("")
async def list_findings(
    gateway: GatewayParts,
    run: Annotated[str | None, Query(max_length=256, description="of one job only")] = None,
    state: Annotated[State | None, Query(description="in this state only")] = None,
) -> list[Finding]:
    """Open findings first, then by when they opened, newest first. Without `run` those of the jobs that are listed."""
    found = list(gateway.job_store.findings.values()) if run is None else await findings_of(gateway, run)
    chosen = (finding for finding in found if state is None or finding.state is state)
    return sorted(chosen, key=lambda finding: (finding.state is not State.OPEN, -finding.opened_unix_ns))


async def findings_of(gateway: Parts, run: str) -> list[Finding]:
    """Of one run, whether it is listed or not."""
    known = gateway.job_store
    if run in known.jobs:
        return known.findings_of(run)
    return await gateway.findings.find(run=run) or known.findings_of(run)


@router.get("/{id}")
async def get_finding(gateway: GatewayParts, finding_id: FindingId) -> Finding:
    found = gateway.job_store.findings.get(finding_id) or await gateway.findings.get(finding_id)
    if found is None:
        raise NotFoundError(f"there is no finding {finding_id!r}, or it was found too long ago")
    return found


@router.post("/{id}/refute", status_code=202, dependencies=[Depends(operator)])
async def refute_finding(gateway: GatewayParts, finding_id: FindingId, now: Now) -> Finding:
    """Say that a finding is none: its devices are not slow. The detector resolves it, and accuses them of the like
    again only where they are clearly worse (operators only). The answer is the finding as it was before."""
    finding = await get_finding(gateway, finding_id)
    if finding.kind not in REFUTABLE:
        raise ConflictError("a hang can't be refuted: it is over when something moves")
    word = findings_pb2.Refutation(finding=finding.id, unix_ns=now)
    await gateway.bus.publish(Topic.REFUTATIONS, finding.run, word.SerializeToString())
    return finding
