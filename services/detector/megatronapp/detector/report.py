"""What an analysis says: the job's numbers and the findings, as values, JSON and text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from megatronapp.core.findings import Finding


class Job(BaseModel):
    """The job as a whole; what its records do not tell is None or empty."""

    model_config = ConfigDict(frozen=True)

    name: str
    format: str
    ranks: int
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
