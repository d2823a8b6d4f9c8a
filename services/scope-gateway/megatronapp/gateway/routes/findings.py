"""What the detector found: of the jobs that are listed as the bus tells it, of earlier ones out of the store."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from megatronapp.core.bus import Topic
from megatronapp.core.errors import NotFoundError, UnavailableError, UsageError
from megatronapp.core.findings import REFUTABLE, Finding, State
from megatronapp.core.findings_store import Annotation, AnnotationKind
from megatronapp.core.findings_store.annotations import encode_annotation, silenced
from megatronapp.core.trace.limits import MAX_LABEL, MAX_WORLD
from megatronapp.gateway.deps import AskingOperator, Caller, GatewayParts, Now, Parts, operator
from megatronapp.gateway.errors import ConflictError
from megatronapp.gateway.finding_archive import Subject
from megatronapp.gateway.models import Model
from megatronapp.v1 import findings_pb2

router = APIRouter(prefix="/findings", tags=["findings"])

MAX_SILENCE_SECONDS = 30 * 86_400

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


@router.get("/history")
async def list_finding_history(
    gateway: GatewayParts,
    job: Annotated[str, Query(max_length=512, description="<namespace>/<name>")] = "",
    rank: Annotated[int | None, Query(ge=0, lt=MAX_WORLD, description="of `job`")] = None,
    node: Annotated[str, Query(max_length=MAX_LABEL)] = "",
    device: Annotated[str, Query(max_length=512, description="a physical device, or a GPU's UUID")] = "",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> list[Finding]:
    """What was found of a rank, a node or a device, over all runs and attempts that the store remembers: the newest
    first, without evidence."""
    if rank is not None and not job:
        raise UsageError("rank: of which job? name it as job=<namespace>/<name>")
    subject = Subject(job, rank, node, device)
    if subject == Subject():
        raise UsageError("name a job, a rank of it, a node or a device")
    return (await gateway.archive.find(subject, gateway.job_store.findings.values()))[:limit]


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


# ---- what people say of it ----


class Said(Model):
    kind: Literal["comment", "acknowledge", "unacknowledge"]
    text: str = Field(default="", max_length=4096, description="needed of a comment")


class SilenceWish(Model):
    seconds: int = Field(ge=60, le=MAX_SILENCE_SECONDS, description="how long from now")
    text: str = Field(default="", max_length=4096)


@router.get("/{id}/annotations")
async def list_annotations(gateway: GatewayParts, finding_id: FindingId) -> list[Annotation]:
    """Comments, acknowledgements and silences, the oldest first."""
    finding = await get_finding(gateway, finding_id)
    return await _annotations(gateway, finding)


@router.post("/{id}/annotations", status_code=201)
async def annotate_finding(
    body: Said, asking: AskingOperator, gateway: GatewayParts, finding_id: FindingId, now: Now
) -> Annotation:
    """Acknowledge a finding, take that back, or comment on it (operators only)."""
    finding = await get_finding(gateway, finding_id)
    if body.kind == "comment" and not body.text.strip():
        raise UsageError("text: a comment says something")
    return await _say(gateway, asking, finding, AnnotationKind(body.kind), now, text=body.text.strip())


@router.post("/{id}/silence", status_code=201)
async def silence_finding(
    body: SilenceWish, asking: AskingOperator, gateway: GatewayParts, finding_id: FindingId, now: Now
) -> Annotation:
    """Have Alertmanager send nothing of the finding for a while (operators only; 409 without an Alertmanager). The
    finding stays open, and a silence that holds already ends."""
    finding = await get_finding(gateway, finding_id)
    before = silenced(await _annotations(gateway, finding), now)
    begin, end = now / 1e9, now / 1e9 + body.seconds
    silence = await gateway.silences.create(finding, asking.signature, body.text.strip(), begin, end)
    if before is not None:
        await gateway.silences.end(before.silence)
    until, text = now + body.seconds * 10**9, body.text.strip()
    return await _say(
        gateway, asking, finding, AnnotationKind.SILENCE, now, text=text, until_unix_ns=until, silence=silence
    )


@router.delete("/{id}/silence")
async def end_silence(asking: AskingOperator, gateway: GatewayParts, finding_id: FindingId, now: Now) -> Annotation:
    """End the silence that holds (operators only; 409 when none does)."""
    finding = await get_finding(gateway, finding_id)
    holds = silenced(await _annotations(gateway, finding), now)
    if holds is None:
        raise ConflictError("the finding is not silenced")
    await gateway.silences.end(holds.silence)
    return await _say(gateway, asking, finding, AnnotationKind.UNSILENCE, now)


async def _annotations(gateway: Parts, finding: Finding) -> list[Annotation]:
    return await gateway.findings.annotations([finding.id])


async def _say(
    gateway: Parts, asking: Caller, finding: Finding, kind: AnnotationKind, now: int, **more: Any
) -> Annotation:
    annotation = Annotation(id=uuid4().hex, finding=finding.id, kind=kind, by=asking.signature, unix_ns=now, **more)
    if not await gateway.findings.annotate(annotation):
        raise UnavailableError("the store of findings does not have this finding, so nothing said of it can be kept")
    await gateway.bus.publish(Topic.ANNOTATIONS, finding.id, encode_annotation(annotation))
    return annotation
