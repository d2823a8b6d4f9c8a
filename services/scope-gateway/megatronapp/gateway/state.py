"""What the gateway knows: messages of the bus folded into jobs, ranks, steps and findings.

Pure: no I/O and no clock. Every `apply_*` may see a message twice (the bus delivers at least once) and says what
changed, so that only this is sent to viewers. All of it is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store.annotations import MAX_ANNOTATIONS, Annotation
from megatronapp.core.trace.evaluations import Evaluations
from megatronapp.core.trace.membership import Membership, Process, copied
from megatronapp.core.trainingjob import Phase
from megatronapp.v1 import trace_pb2

MAX_JOBS = 2_000
"""As many as the trace-collector traces at once."""
MAX_STEPS = 2_000
"""Of a job. The collector has the whole history."""
MAX_STEP_ROWS = 1_000_000
"""Of all jobs together, some 200 bytes each: of many jobs fewer steps are kept."""
MIN_STEPS = 200
MAX_FINDINGS = 5_000


@dataclass(slots=True)
class TrackedStep:
    step: int
    unix_ns: int
    duration_ns: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None


PROGRESS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tflops_per_gpu")


@dataclass(frozen=True, slots=True)
class ReportedPhase:
    """Where a TrainingJob stands, as the operator says."""

    phase: Phase
    since_unix_ns: int
    reason: str = ""
    message: str = ""


@dataclass(slots=True)
class TrackedJob:
    run: str
    job: str = ""
    membership: Membership = field(default_factory=Membership)
    sizes: trace_pb2.ParallelSizes = field(default_factory=trace_pb2.ParallelSizes)
    total_steps: int = 0
    step: int = 0
    step_unix_ns: int = 0
    """When the newest step's first summary arrived."""
    started_unix_ns: int = 0
    """When it was first heard of; 0: not known."""
    seen_unix_ns: int = 0
    steps: dict[int, TrackedStep] = field(default_factory=dict)
    """The newest MAX_STEPS, ascending."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    reported: ReportedPhase | None = None
    hidden: bool = False
    """It could not be shown when that was tried last."""

    @property
    def heard(self) -> bool:
        """Whether any of its ranks ever was."""
        return bool(self.ranks) or self.started_unix_ns > 0

    @property
    def attempt(self) -> int:
        return self.membership.attempt

    @property
    def ranks(self) -> Mapping[int, Process]:
        return self.membership.ranks


@dataclass(frozen=True, slots=True)
class Change:
    """What viewers must hear of: a job, and maybe a step of it."""

    run: str
    step: int | None = None


@dataclass(slots=True)
class JobStore:
    jobs: dict[str, TrackedJob] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    annotations: dict[str, dict[str, Annotation]] = field(default_factory=dict)
    """By finding and by their own id, the oldest first."""
    controls: dict[str, trace_pb2.TraceControl] = field(default_factory=dict)
    """What was asked for last, by run; it may be read before the run's first message."""

    def apply_message(self, message: trace_pb2.RankMessage) -> Change | None:
        """Fold in what a rank said. None when it is of an attempt or a process that has been replaced, or of another
        job than the run's: a run belongs to the first that is heard of it.

        Raises DataError for a message that names no run.
        """
        identity, body = message.identity, message.message.WhichOneof("body")
        if not identity.run:
            raise DataError("a message names no run")
        job = self._job(identity.run)
        if job.job and identity.job != job.job:
            return None
        _begin_attempt(job, identity.attempt)
        process = job.membership.apply(message)
        if process is None:
            return None
        job.job = job.job or identity.job
        _seen(job, message.received_unix_ns, message.received_unix_ns)
        if body == "hello":
            _hello(job, message.message.hello)
        elif body == "heartbeat":
            job.evaluations.take(message.message.heartbeat.evaluations)
        elif body == "summary":
            most = min(MAX_STEPS, max(MIN_STEPS, MAX_STEP_ROWS // len(self.jobs)))
            _summary(job, message.message.summary, message.received_unix_ns, most)
            return Change(job.run, message.message.summary.step)
        return Change(job.run)

    def apply_finding(self, finding: Finding) -> bool:
        """Keep the newest state of a finding; False for an older one."""
        known = self.findings.get(finding.id)
        if known is not None and finding.updated_unix_ns < known.updated_unix_ns:
            return False
        self.findings.pop(finding.id, None)
        self.findings[finding.id] = finding
        if len(self.findings) > MAX_FINDINGS:
            resolved = (f.id for f in self.findings.values() if f.state is State.RESOLVED)
            oldest = next(resolved, next(iter(self.findings)))
            del self.findings[oldest]
            self.annotations.pop(oldest, None)
        return True

    def apply_annotation(self, annotation: Annotation) -> bool:
        """Keep what somebody said of a finding; False when it is known, or the finding is not."""
        if annotation.finding not in self.findings:
            return False
        known = self.annotations.setdefault(annotation.finding, {})
        if annotation.id in known:
            return False
        known[annotation.id] = annotation
        ordered = sorted(known.values(), key=lambda each: (each.unix_ns, each.id))[-MAX_ANNOTATIONS:]
        self.annotations[annotation.finding] = {each.id: each for each in ordered}
        return True

    def apply_control(self, run: str, control: trace_pb2.TraceControl) -> Change:
        """Remember what was asked for."""
        self.controls.pop(run, None)
        self.controls[run] = control
        if len(self.controls) > MAX_JOBS:
            del self.controls[next(iter(self.controls))]
        return Change(run)

    def apply_phase(self, run: str, name: str, reported: ReportedPhase | None) -> Change | None:
        """Remember where a TrainingJob stands, also one that nobody has heard of; None: it is no more. Returns None
        when that is no news, is said of another job's run, or there is no room."""
        job = self.jobs.get(run)
        if job is None:
            if reported is None or len(self.jobs) >= MAX_JOBS:
                return None
            job = self.jobs[run] = TrackedJob(run, name)
        elif job.reported == reported or (job.job and job.job != name):
            return None
        job.job, job.reported = name, reported
        if not job.heard:
            if reported is None:
                self.forget(run)
            else:
                job.seen_unix_ns = reported.since_unix_ns
        return Change(run)

    def apply_record(
        self,
        record: trace_pb2.JobRecord,
        ranks: trace_pb2.ListRanksResponse,
    ) -> Change:
        """Fill in, from the collector's records, what the bus does not tell (any more)."""
        job = self._job(record.run)
        if record.attempt >= job.attempt:
            _begin_attempt(job, record.attempt)
            job.job = job.job or record.job
            job.total_steps = job.total_steps or record.schedule.total_steps
            job.step = max(job.step, record.last_step)
            _seen(job, record.first_seen_unix_ns, record.last_seen_unix_ns)
            if not job.sizes.world:
                job.sizes = record.sizes
            for known in ranks.ranks:
                job.membership.recall(known)
            if job.membership.recipe is None and ranks.HasField("recipe"):
                job.membership.recipe = ranks.recipe
            job.evaluations.take(ranks.evaluations)
        return Change(record.run)

    def forget(self, run: str) -> None:
        """Drop a job and what was found in it."""
        self.jobs.pop(run, None)
        self.controls.pop(run, None)
        self.findings = {key: finding for key, finding in self.findings.items() if finding.run != run}
        self.annotations = {key: each for key, each in self.annotations.items() if key in self.findings}

    def findings_of(self, run: str) -> list[Finding]:
        return [finding for finding in self.findings.values() if finding.run == run]

    def _job(self, run: str) -> TrackedJob:
        if run not in self.jobs:
            if len(self.jobs) >= MAX_JOBS:
                self.forget(min(self.jobs.values(), key=lambda job: job.seen_unix_ns).run)
            self.jobs[run] = TrackedJob(run)
        return self.jobs[run]


def _seen(job: TrackedJob, first_unix_ns: int, last_unix_ns: int) -> None:
    known = [at for at in (job.started_unix_ns, first_unix_ns) if at > 0]
    job.started_unix_ns = min(known, default=0)
    job.seen_unix_ns = max(job.seen_unix_ns, last_unix_ns)


def _begin_attempt(job: TrackedJob, attempt: int) -> None:
    """A newer attempt has other processes; what is known of earlier steps stays."""
    if job.membership.begin(attempt):
        job.step, job.step_unix_ns = 0, 0


def _hello(job: TrackedJob, hello: trace_pb2.Hello) -> None:
    job.sizes = copied(hello.placement.sizes)
    job.total_steps = hello.schedule.total_steps or job.total_steps
    if job.step == 0:
        first = max(1, hello.schedule.first_step)
        if first > job.total_steps > 0:  # resumed from the checkpoint of the last step
            job.step = job.total_steps
        for step in [step for step in job.steps if step >= first]:
            del job.steps[step]
        job.evaluations.forget_from(first)


def _summary(job: TrackedJob, summary: trace_pb2.StepSummary, received_unix_ns: int, most: int) -> None:
    if summary.step > job.step:
        job.step, job.step_unix_ns = summary.step, received_unix_ns
    row = _row(job, summary.step, received_unix_ns, most)
    row.duration_ns = max(row.duration_ns, summary.duration_ns)
    for name in PROGRESS:
        if summary.progress.HasField(name):
            setattr(row, name, getattr(summary.progress, name))
    job.total_steps = summary.progress.total_steps or job.total_steps


def _row(job: TrackedJob, step: int, received_unix_ns: int, most: int) -> TrackedStep:
    if step not in job.steps:
        newest = next(reversed(job.steps), 0)
        job.steps[step] = TrackedStep(step, received_unix_ns)
        if step < newest:
            job.steps = dict(sorted(job.steps.items()))
        for old in list(islice(job.steps, max(0, len(job.steps) - most))):
            del job.steps[old]
    return job.steps.get(step) or TrackedStep(step, received_unix_ns)
