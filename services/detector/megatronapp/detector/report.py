"""What an analysis says: the job's numbers and the findings, as values, JSON and text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from megatronapp.core.findings import Finding
from megatronapp.core.wording import counted, ranks_named

SHOWN_OPERATORS, SHOWN_LATE = 10, 4
"""In the text; JSON and --verbose have all."""


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


class GroupLateness(BaseModel):
    """Who comes late to the operations of one communicator, ranks in order."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """The dimensions it runs along, such as "TP" or "DP-PP"."""
    communicator: str
    ranks: tuple[int, ...]
    operations: int
    late_seconds: tuple[float, ...]
    """Behind the first one to call an operation, mean; for whatever reason, also as it was kept waiting elsewhere."""
    last_ratio: tuple[float, ...]
    """Share of the operations that it called last."""


class StageWork(BaseModel):
    model_config = ConfigDict(frozen=True)

    stage: int
    ranks: tuple[int, ...]
    work_ratio: float
    """Share of the time in which its ranks work by themselves and wait for nobody, median."""


class Bottleneck(BaseModel):
    model_config = ConfigDict(frozen=True)

    kind: str
    """TP, DP or PP: along which the others wait."""
    ranks: tuple[int, ...]
    text: str


class Parallel(BaseModel):
    """How the job is laid out, and who is late in its groups."""

    model_config = ConfigDict(frozen=True)

    tp: int
    dp: int
    pp: int
    source: str
    """Who told it: the config's name, or "communicators"."""
    clocks_corrected: bool
    """Whether clocks of hosts were found to differ."""
    groups: tuple[GroupLateness, ...] = ()
    stages: tuple[StageWork, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()


class Culprit(BaseModel):
    model_config = ConfigDict(frozen=True)

    rank: int
    communicator: str
    operation: str
    sequence: int
    side: str
    """host, device, network, deadlock, circular or unknown."""
    waiting: tuple[int, ...] = ()


class Hang(BaseModel):
    """Where a job stands still. Ranks are all that can be named, maybe none; what follows is of the first of them."""

    model_config = ConfigDict(frozen=True)

    ranks: tuple[int, ...] = ()
    communicator: str | None = None
    operation: str | None = None
    sequence: int | None = None
    side: str | None = None
    culprits: tuple[Culprit, ...] = ()


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
    parallel: Parallel | None = None
    notes: tuple[str, ...] = ()
    """What could not be judged, and what to do about it."""


class Report(BaseModel):
    model_config = ConfigDict(frozen=True)

    job: Job
    findings: tuple[Finding, ...] = ()
    """Those that page first, then by cost. A passing suspicion that never paged is not among them."""
    hang: Hang | None = None

    def as_json(self) -> dict[str, Any]:
        """A step that the source does not know is null; steps count from 1."""
        report = self.model_dump(mode="json")
        for finding in report["findings"]:
            finding["opened_step"] = finding["opened_step"] or None
        return report

    def as_text(self, verbose: bool = False, groups: bool = False) -> str:
        """groups: also who is late in which group; all of them where verbose."""
        job = _job_lines(self.job, verbose, groups or verbose)
        return "\n".join([*job, "", *_finding_lines(self.findings, verbose)])


def _job_lines(job: Job, verbose: bool, groups: bool) -> list[str]:
    steps = f", {counted(job.steps, 'step')}" if job.steps else ""
    lines = [f"{job.name}: {counted(job.ranks, 'rank')}{steps} ({job.format})"]
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
    lines += _breakdown_lines(job.breakdown, verbose) if job.breakdown else []
    lines += _parallel_lines(job.parallel, verbose, groups) if job.parallel else []
    if job.without_peers:
        lines.append(f"  not judged       {ranks_named(job.without_peers)}: no other rank launches the same kernels")
    return lines + [f"  note             {note}" for note in job.notes]


def _parallel_lines(parallel: Parallel, verbose: bool, groups: bool) -> list[str]:
    sizes = f"TP {parallel.tp}, PP {parallel.pp}, DP {parallel.dp} (by {parallel.source})"
    lines = [f"  layout           {sizes}{', clocks corrected' if parallel.clocks_corrected else ''}"]
    for kind in dict.fromkeys(group.kind for group in parallel.groups if groups):
        rows = sorted(_lateness(parallel, kind), key=lambda row: -row[1])
        lines.append(f"    late in {kind} groups, of all their operations")
        lines += [
            f"    {f'rank {rank}':>14}  by {1000 * late:.3f} ms  last in {last:.0%}"
            for rank, late, last in (rows if verbose else rows[:SHOWN_LATE])
        ]
    if len(parallel.stages) > 1 and groups:
        shares = ", ".join(f"{stage.stage}: {stage.work_ratio:.0%}" for stage in parallel.stages)
        lines.append(f"    own work by stage, share of the time  {shares}")
    return lines + [f"  bottleneck       {bottleneck.text}" for bottleneck in parallel.bottlenecks]


def _lateness(parallel: Parallel, kind: str) -> list[tuple[int, float, float]]:
    """Rank, seconds late and share of operations called last, over all its groups of a kind."""
    found: dict[int, tuple[int, float, float]] = {}
    for group in parallel.groups:
        for rank, late, last in zip(group.ranks, group.late_seconds, group.last_ratio, strict=True):
            if group.kind == kind:
                count, seconds, share = found.get(rank, (0, 0.0, 0.0))
                more = group.operations
                found[rank] = (count + more, seconds + late * more, share + last * more)
    return [(rank, seconds / count, share / count) for rank, (count, seconds, share) in found.items()]


def _breakdown_lines(breakdown: Breakdown, verbose: bool) -> list[str]:
    step = breakdown.computing + breakdown.exposed_communication + breakdown.idle
    parts = (
        ("computing", breakdown.computing),
        ("exposed comm.", breakdown.exposed_communication),
        ("idle", breakdown.idle),
    )
    lines = [f"    {name:<14} {1000 * seconds:.3f} ms  {seconds / step:.1%}" for name, seconds in parts if step]
    lines.append(f"    {'communication':<14} {1000 * breakdown.communication:.3f} ms, hidden or not")
    shown = breakdown.operators if verbose else breakdown.operators[:SHOWN_OPERATORS]
    lines += [f"    {1000 * each.seconds:>10.3f} ms  {each.calls:>8.1f} ×  {each.name}" for each in shown]
    return lines


def _finding_lines(findings: tuple[Finding, ...], verbose: bool) -> list[str]:
    if not findings:
        return ["Nothing found."]
    lines = []
    for finding in findings:
        mark = "PAGE  " if finding.page else "advice" if finding.kind == "imbalance" else "note  "
        lines.append(f"{mark}  {finding.kind}/{finding.cause}  {finding.summary}")
        if finding.advice:
            lines.append(f"          {finding.advice}")
        lines += [f"          {each.signal}: {each.text}" for each in finding.evidence if verbose]
    return lines
