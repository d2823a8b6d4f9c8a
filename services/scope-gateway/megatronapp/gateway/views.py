"""State of the platform → values of the REST API. Pure; the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from statistics import median
from typing import Any, Literal

from megatronapp.core.findings import Finding, Kind, State
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.membership import Process
from megatronapp.core.trainingjob import Phase
from megatronapp.gateway import models
from megatronapp.gateway.models import ENDED, WAITING, JobState
from megatronapp.gateway.run_history import evaluation_view
from megatronapp.gateway.state import PROGRESS, JobStore, TrackedJob, TrackedStep
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

SILENT_NS = 15_000_000_000
"""A rank that says nothing for so long is not connected: heartbeats come once a second."""
QUIET_NS = 3_000_000_000
"""A rank that says nothing for so long is shown as silent, though it may still be connected."""
STALLED_NS = 10_000_000_000
STALLED_STEPS = 5
"""Stalled: no step for STALLED_NS, nor for so many median steps."""
MEDIAN_STEPS = 20
TREND_POINTS = 32

QUIET_PHASES = {
    trace_pb2.PHASE_START,
    trace_pb2.PHASE_EVALUATION,
    trace_pb2.PHASE_CHECKPOINT,
    trace_pb2.PHASE_COMPILE,
    trace_pb2.PHASE_PAUSE,
}
NAMES_RANKS = {Kind.SLOW_GPU, Kind.SLOW_LINK, Kind.SLOW_HOST, Kind.HANG}
DEVICES: dict[int, Literal["cpu", "cuda"]] = {trace_pb2.DEVICE_CPU: "cpu", trace_pb2.DEVICE_CUDA: "cuda"}
GRANULARITIES = {
    models.TraceGranularity.BASE: trace_pb2.GRANULARITY_BASE,
    models.TraceGranularity.FULL: trace_pb2.GRANULARITY_FULL,
}


STATES_OF_PHASE = {
    Phase.PENDING: JobState.PENDING,
    Phase.STARTING: JobState.STARTING,
    Phase.RESTARTING: JobState.STARTING,
    Phase.SUSPENDED: JobState.SUSPENDED,
    Phase.FAILED: JobState.FAILED,
}
STATES_UNHEARD = {Phase.RUNNING: JobState.STARTING, Phase.SUCCEEDED: JobState.FINISHED}
"""Where ranks were heard, they have said better how it went."""


def job_view(job: TrackedJob, findings: Iterable[Finding], now_ns: int) -> models.Job:
    """The job as it is now; `findings` are those of its run."""
    namespace, _, name = job.job.partition("/")
    step_seconds = _median_step_seconds(job)
    state = job_state(job, now_ns)
    in_force = _control_in_force(job)
    lasting = [finding for finding in findings if finding.page and _lasts(finding, job, state)]
    return models.Job(
        run=job.run,
        job=job.job,
        namespace=namespace,
        name=name,
        attempt=job.attempt,
        state=state,
        state_reason=job.reported.reason if job.reported else "",
        state_message=job.reported.message if job.reported else "",
        attached=_attached(job),
        sizes=_sizes(job.sizes),
        step=job.step,
        total_steps=job.total_steps,
        step_seconds=step_seconds,
        **_progress(job),
        loss_trend=_trend(job),
        eta_seconds=_eta_seconds(job, state, step_seconds),
        ranks_connected=sum(connected(rank, now_ns) for rank in job.ranks.values()),
        ranks_silent=sum(
            connected(rank, now_ns) and now_ns - rank.heard_unix_ns >= QUIET_NS for rank in job.ranks.values()
        ),
        slow_ranks=tuple(sorted({rank for f in lasting if f.kind in NAMES_RANKS for rank in f.ranks})),
        open_findings=len(lasting),
        trace_control=control_view(in_force) if in_force else None,
        started_unix_seconds=_seconds(_started_ns(job)) if _started_ns(job) else None,
        updated_unix_seconds=_seconds(job.seen_unix_ns),
    )


def _attached(job: TrackedJob) -> models.AttachedDegree | None:
    """How much of the program is seen: as its first rank says, and of steps whether one has ended."""
    attached = next((rank.attached for rank in job.ranks.values() if rank.attached), trace_pb2.ATTACHED_UNSPECIFIED)
    if attached == trace_pb2.ATTACHED_SCHEDULES:
        return models.AttachedDegree.FULL
    if attached != trace_pb2.ATTACHED_PROGRAM:
        return None
    return models.AttachedDegree.STEPS if job.step else models.AttachedDegree.COLLECTIVES


def job_detail(job: TrackedJob, findings: Iterable[Finding], now_ns: int) -> models.JobDetail:
    """The job with what lists and events leave out."""
    recipe = job.membership.recipe
    return models.JobDetail(
        **dict(job_view(job, findings, now_ns)),
        recipe=recipe_view(recipe) if recipe is not None else None,
        evaluations=[evaluation_view(evaluation) for evaluation in job.evaluations],
    )


def job_state(job: TrackedJob, now_ns: int) -> JobState:
    """Where the job stands."""
    if not any(connected(rank, now_ns) for rank in job.ranks.values()):
        return _reported_state(job) or _end_state(job)
    if job.step == 0:
        serves = any(heartbeat.phase == trace_pb2.PHASE_PAUSE for heartbeat in _heartbeats(job))
        collects = _attached(job) is models.AttachedDegree.COLLECTIVES and any(h.frontiers for h in _heartbeats(job))
        # A training pauses after its first step alone; of a program without steps its collectives tell that it runs.
        return JobState.RUNNING if serves or collects else JobState.STARTING
    patience_ns = max(STALLED_NS, STALLED_STEPS * (_median_step_seconds(job) or 0.0) * 1e9)
    quiet = any(heartbeat.phase in QUIET_PHASES for heartbeat in _heartbeats(job))
    stalled = job.step_unix_ns and not quiet and now_ns - job.step_unix_ns > patience_ns
    return JobState.STALLED if stalled else JobState.RUNNING


def _reported_state(job: TrackedJob) -> JobState | None:
    """Where a job stands of which no rank is connected, as far as the operator knows better than its last words."""
    if job.reported is None:
        return None
    if job.reported.phase in STATES_OF_PHASE:
        return STATES_OF_PHASE[job.reported.phase]
    return None if job.heard else STATES_UNHEARD[job.reported.phase]


def _end_state(job: TrackedJob) -> JobState:
    """How a job has ended that nobody is connected of."""
    ranks = job.ranks.values()
    done = 0 < job.total_steps <= job.step
    if any(rank.closed and not _ended_well(rank, done) for rank in ranks):
        return JobState.FAILED
    if done:
        return JobState.FINISHED
    if not ranks or not all(rank.closed for rank in ranks):
        return JobState.LOST
    return JobState.STOPPED if job.total_steps else JobState.FINISHED


def _ended_well(rank: Process, done: bool) -> bool:
    """A run that ends in good order ends in a pause; of a rank that tells no phase the last step decides, and where a
    record says that it has ended nobody knows more."""
    heartbeat = rank.heartbeat
    if heartbeat is None or heartbeat.phase == trace_pb2.PHASE_PAUSE:
        return True
    return done and heartbeat.phase == trace_pb2.PHASE_UNSPECIFIED


def _lasts(finding: Finding, job: TrackedJob, state: JobState) -> bool:
    """Whether it is open, or was when the job ended."""
    at_end = state in ENDED and finding.open_at_end and finding.attempt == job.attempt
    return finding.state is State.OPEN or at_end


def connected(rank: Process, now_ns: int) -> bool:
    return not rank.closed and not rank.lost and now_ns - rank.heard_unix_ns < SILENT_NS


def rank_view(rank: Process, now_ns: int) -> models.Rank:
    heartbeat = rank.heartbeat
    busy = heartbeat is not None and heartbeat.activity != "" and heartbeat.activity_since_ns > 0
    return models.Rank(
        rank=rank.rank,
        node=rank.placement.node,
        gpu_uuid=rank.placement.gpu_uuid,
        device=DEVICES.get(rank.device, "unknown"),
        device_id=rank.placement.device_id,
        device_name=rank.placement.device_name,
        role=rank.placement.role,
        local_rank=rank.placement.local_rank,
        placement=models.RankPlacement(
            tensor=rank.placement.tensor,
            pipeline=rank.placement.pipeline,
            data=rank.placement.data,
            context=rank.placement.context,
            expert=rank.placement.expert,
        ),
        connected=connected(rank, now_ns),
        ended=rank.closed,
        step=rank.step,
        activity=heartbeat.activity if heartbeat else "",
        activity_seconds=_seconds(heartbeat.clock_ns - heartbeat.activity_since_ns) if heartbeat and busy else None,
        heartbeat_age_seconds=_seconds(max(0, now_ns - rank.heartbeat_unix_ns)) if heartbeat else None,
        dropped=rank.dropped,
        gpu=_gpu(heartbeat.gpu) if heartbeat and heartbeat.HasField("gpu") else None,
        memory=_memory(rank.memory) if rank.memory is not None else None,
    )


def rank_status(run: str, rank: Process, now_ns: int) -> models.RankStatus:
    return models.RankStatus(
        run=run,
        rank=rank.rank,
        node=rank.placement.node,
        device=DEVICES.get(rank.device, "unknown"),
        local_rank=rank.placement.local_rank,
        connected=connected(rank, now_ns),
        ended=rank.closed,
        heartbeat_age_seconds=_seconds(max(0, now_ns - rank.heartbeat_unix_ns)) if rank.heartbeat else None,
    )


def step_row(step: TrackedStep) -> models.StepRow:
    return models.StepRow(
        step=step.step,
        unix_seconds=_seconds(step.unix_ns),
        step_seconds=_seconds(step.duration_ns) or None,
        **{field: _finite(getattr(step, field)) for field in PROGRESS},
    )


def metrics_view(job: TrackedJob, from_step: int, limit: int) -> models.Metrics:
    rows = [step_row(step) for step in job.steps.values() if step.step >= from_step][-limit:]
    return models.Metrics(**{field: [getattr(row, field) for row in rows] for field in models.Metrics.model_fields})


def control_status(job: TrackedJob, requested: trace_pb2.TraceControl | None) -> models.TraceControlStatus:
    in_force = _control_in_force(job)
    wanted = requested or in_force
    controls = [heartbeat.control for heartbeat in _heartbeats(job) if heartbeat.HasField("control")]
    return models.TraceControlStatus(
        requested=control_view(requested) if requested else None,
        in_force=control_view(in_force) if in_force else None,
        ranks=len(controls),
        ranks_confirmed=sum(control == wanted for control in controls),
    )


def control_view(control: trace_pb2.TraceControl) -> models.TraceControl:
    full = control.granularity == trace_pb2.GRANULARITY_FULL
    return models.TraceControl(
        enabled=control.enabled,
        interval=max(1, control.interval),
        continuous_iterations=max(1, control.continuous_iterations),
        granularity=models.TraceGranularity.FULL if full else models.TraceGranularity.BASE,
    )


def control_message(control: models.TraceControl) -> trace_pb2.TraceControl:
    return trace_pb2.TraceControl(
        enabled=control.enabled,
        interval=control.interval,
        continuous_iterations=control.continuous_iterations,
        granularity=GRANULARITIES[control.granularity],
    )


def snapshot(job_store: JobStore, now_ns: int) -> models.SnapshotEvent:
    return models.SnapshotEvent(
        jobs=job_views(job_store, now_ns),
        findings=list(job_store.findings.values()),
        annotations=[annotation for known in job_store.annotations.values() for annotation in known.values()],
    )


def job_views(job_store: JobStore, now_ns: int, runs: Collection[str] | None = None) -> list[models.Job]:
    """All jobs, or those of `runs`; the one started last first. One that can't be shown hides no other."""
    findings: dict[str, list[Finding]] = {}
    for finding in job_store.findings.values():
        findings.setdefault(finding.run, []).append(finding)
    chosen = [job for job in job_store.jobs.values() if runs is None or job.run in runs]
    jobs = sorted(chosen, key=lambda job: (-_started_ns(job), job.run))
    views = (_contained(job, findings.get(job.run, ()), now_ns) for job in jobs)
    return [view for view in views if view is not None]


def matches(job: models.Job, text: str) -> bool:
    """Whether every word of the text is part of its name, namespace or run."""
    where = f"{job.job} {job.run}".casefold()
    return all(word in where for word in text.casefold().split())


def sorted_jobs(
    jobs: Collection[models.Job], key: Callable[[models.Job], float | str | None], *, ascending: bool
) -> list[models.Job]:
    """Stable; those without a value come last either way."""
    known = [job for job in jobs if key(job) is not None]
    unknown = [job for job in jobs if key(job) is None]
    return [*sorted(known, key=key, reverse=not ascending), *unknown]  # type: ignore[arg-type]  # none is None


def _started_ns(job: TrackedJob) -> int:
    """When it was first heard of; of one that nobody has heard yet, since when it stands where it does."""
    return job.started_unix_ns or (job.reported.since_unix_ns if job.reported and not job.heard else 0)


def _contained(job: TrackedJob, findings: Iterable[Finding], now_ns: int) -> models.Job | None:
    try:
        view = job_view(job, findings, now_ns)
    except Exception:
        if not job.hidden:
            log.exception("job_not_shown", job=job.job, run=job.run)
        job.hidden = True
        return None
    job.hidden = False
    return view


def _progress(job: TrackedJob) -> dict[str, Any]:
    """Values of the newest step that tells its loss (a step's ranks report one after the other)."""
    rows = reversed(job.steps.values())
    newest = next((row for row in rows if row.loss is not None), TrackedStep(0, 0))
    values = {name: getattr(newest, name) for name in PROGRESS}
    broken = tuple(name for name, value in values.items() if value is not None and not math.isfinite(value))
    return {"non_finite": broken, **{name: _finite(value) for name, value in values.items()}}


def _trend(job: TrackedJob) -> tuple[float, ...]:
    """Losses at steps that lie evenly, the newest last."""
    losses = [row.loss for row in job.steps.values() if row.loss is not None and math.isfinite(row.loss)]
    every = max(1, math.ceil(len(losses) / TREND_POINTS))
    return tuple(losses[::-1][::every][::-1])


def _heartbeats(job: TrackedJob) -> Iterator[trace_pb2.Heartbeat]:
    return (rank.heartbeat for rank in job.ranks.values() if rank.heartbeat is not None)


def _control_in_force(job: TrackedJob) -> trace_pb2.TraceControl | None:
    """What the rank heard last says is in force."""
    newest = max(job.ranks.values(), key=lambda rank: rank.heartbeat_unix_ns, default=None)
    heartbeat = newest.heartbeat if newest else None
    return heartbeat.control if heartbeat is not None and heartbeat.HasField("control") else None


def _median_step_seconds(job: TrackedJob) -> float | None:
    newest = islice(reversed(job.steps.values()), MEDIAN_STEPS)
    durations = [row.duration_ns for row in newest if row.duration_ns]
    return median(durations) / 1e9 if durations else None


def _eta_seconds(job: TrackedJob, state: JobState, step_seconds: float | None) -> float | None:
    if state in ENDED | WAITING or step_seconds is None or job.total_steps < job.step:
        return None
    return (job.total_steps - job.step) * step_seconds


def _sizes(sizes: trace_pb2.ParallelSizes) -> models.Sizes:
    return models.Sizes(**{field: getattr(sizes, field) for field in models.Sizes.model_fields})


def _gpu(gpu: trace_pb2.GpuTelemetry) -> models.GpuTelemetry:
    values = {field: getattr(gpu, field) for field in models.GpuTelemetry.model_fields}
    return models.GpuTelemetry(**values | {"power_watts": _finite(gpu.power_watts)})


def _memory(memory: trace_pb2.Memory) -> models.Memory:
    return models.Memory(**{field: getattr(memory, field) for field in models.Memory.model_fields})


def recipe_view(recipe: trace_pb2.Recipe) -> models.Recipe:
    return models.Recipe(
        settings={each.name: each.value for each in recipe.settings},
        versions={each.name: each.value for each in recipe.versions},
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9
