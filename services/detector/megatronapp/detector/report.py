"""What an analysis says: the job's numbers and the findings, as values, JSON and text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from megatronapp.core.findings import Finding

SHOWN_OPERATORS, SHOWN_RANKS = 10, 16
"""In the text; JSON has all."""


class OperatorTime(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float
    """Of the device (or the CPU) in a step, mean over ranks and steps."""
    calls: float
    """Of its kernels in a step; on a CPU of itself."""


class Breakdown(BaseModel):
    """Where a rank's step goes, in seconds, mean over ranks and steps; what is computed, exposed and idle adds up to
    it."""

    model_config = ConfigDict(frozen=True)

    computing: float
    """Some kernel or copy runs that is none of communication."""
    exposed_communication: float
    """Communication that nothing hides: only its kernels run."""
    idle: float
    """Nothing runs."""
    communication: float
    """Its kernels run, hidden or not: no part of the sum."""
    operators: tuple[OperatorTime, ...] = ()
    """The largest first."""


class Job(BaseModel):
    """The job as a whole; what its records do not tell is None or empty."""

    model_config = ConfigDict(frozen=True)

    name: str
    format: str
    ranks: int
    records: int | None = None
    """How many the source has, whatever they are."""
    without_peers: tuple[int, ...] = ()
    """Ranks that were not judged, as no other one does the same work."""
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    step_seconds: float | None = None
    """Mean recorded time of a step."""
    slowdown_ratio: float | None = None
    """Mean replayed step time ÷ mean step time with every operation type at its typical time."""
    delay_ratio: float | None = None
    """Mean recorded step time ÷ mean replayed one: delays that no recorded operation explains."""
    slowdown_by_step: dict[str, float] = {}
    slowdown_by_replica: dict[str, float] = {}
    """Slowdown when one replica alone keeps its times and everything else is typical, largest first."""
    slowdown_by_stage: dict[str, float] = {}
    slowdown_by_operation: dict[str, float] = {}
    breakdown: Breakdown | None = None


class Report(BaseModel):
    model_config = ConfigDict(frozen=True)

    job: Job
    findings: tuple[Finding, ...] = ()
    """Those that page first, then by cost. A passing suspicion that never paged is not among them."""

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def as_text(self) -> str:
        return "\n".join([*_job_lines(self.job), "", *_finding_lines(self.findings)])


def _job_lines(job: Job) -> list[str]:
    lines = [f"{job.name}: {job.ranks} ranks, {job.steps} steps ({job.format})"]
    if job.step_seconds is not None:
        lines.append(f"  step             {job.step_seconds:.3f} s")
    if job.slowdown_ratio is not None:
        lines.append(f"  slowdown         {job.slowdown_ratio:.3f} × the step with equal work everywhere")
    for title, parts in (
        ("by replica", job.slowdown_by_replica),
        ("by stage", job.slowdown_by_stage),
        ("by operation", job.slowdown_by_operation),
    ):
        if parts:
            largest = ", ".join(f"{name} {ratio:.3f}" for name, ratio in list(parts.items())[:4])
            lines.append(f"    {title:<14} {largest}")
    lines += _breakdown_lines(job.breakdown) if job.breakdown else []
    if job.without_peers:
        lines.append(f"  not judged       {_ranks(job.without_peers)}: no other rank launches the same kernels")
    return lines


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN_RANKS])) + (" …" if len(ranks) > SHOWN_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _breakdown_lines(breakdown: Breakdown) -> list[str]:
    step = breakdown.computing + breakdown.exposed_communication + breakdown.idle
    parts = (
        ("computing", breakdown.computing),
        ("exposed comm.", breakdown.exposed_communication),
        ("idle", breakdown.idle),
    )
    lines = [f"    {name:<14} {1000 * seconds:.3f} ms  {seconds / step:.1%}" for name, seconds in parts if step]
    lines.append(f"    {'communication':<14} {1000 * breakdown.communication:.3f} ms, hidden or not")
    shown = breakdown.operators[:SHOWN_OPERATORS]
    lines += [f"    {1000 * each.seconds:>10.3f} ms  {each.calls:>8.1f} ×  {each.name}" for each in shown]
    return lines


def _finding_lines(findings: tuple[Finding, ...]) -> list[str]:
    if not findings:
        return ["Nothing found."]
    lines = []
    for finding in findings:
        mark = "PAGE  " if finding.page else "advice" if finding.kind == "imbalance" else "note  "
        lines.append(f"{mark}  {finding.kind}/{finding.cause}  {finding.summary}")
        if finding.advice:
            lines.append(f"          {finding.advice}")
    return lines
