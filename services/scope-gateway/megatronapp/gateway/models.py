"""The REST API's values. openapi.json, and with it the page's client, is generated from them.

Times are seconds since 1970 (`_unix_seconds`), durations are seconds, unless the name says otherwise. A number that is
not known is null, and so is one that JSON can't carry (NaN, infinity); `Job.non_finite` names these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from megatronapp.core.auth import Role
from megatronapp.core.findings import Finding
from megatronapp.core.findings_store import Annotation
from megatronapp.core.trace.limits import MAX_TRACE_INTERVAL


class Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="null", json_schema_serialization_defaults_required=True
    )


# ---- errors and sessions ----


class ErrorBody(Model):
    code: str = Field(description="stable and machine-readable, e.g. not_found")
    message: str = Field(description="what went wrong")
    hint: str = Field(description="what to do about it; may be empty")


class ErrorResponse(Model):
    """The one shape of every error."""

    error: ErrorBody


class SignIn(Model):
    token: SecretStr = Field(max_length=4096)


class SignInLink(Model):
    """`/?token=…` signs in whoever opens it, once."""

    token: str
    expires_unix_seconds: float


class Session(Model):
    authenticated: bool
    role: Role | None
    name: str = Field(description="who it is; empty: nobody said")
    can_silence: bool = Field(description="whether findings can be silenced: an operator, and there is an Alertmanager")
    expires_unix_seconds: float | None = Field(description="null without a session of its own (bearer token, loopback)")


# ---- jobs ----


class JobState(StrEnum):
    PENDING = "pending"
    """Nothing of it runs yet."""
    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    SUSPENDED = "suspended"
    """Somebody has paused it; it goes on from where it was."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended in good order before its last step: somebody asked it to."""
    FAILED = "failed"
    """A rank ended otherwise than in good order."""
    LOST = "lost"
    """Nobody is heard any more, and nobody said good-bye."""


ENDED = frozenset({JobState.FINISHED, JobState.STOPPED, JobState.FAILED, JobState.LOST})
"""Silence is no end by itself: a lost job that is heard again runs."""
WAITING = frozenset({JobState.PENDING, JobState.SUSPENDED})
"""Nobody runs, and nobody need be heard."""


class Sizes(Model):
    """Sizes of the parallel dimensions; 0: not known yet."""

    world: int = 0
    tensor: int = 0
    pipeline: int = 0
    data: int = 0
    context: int = 0
    expert: int = 0
    virtual_pipeline: int = 0


class TraceGranularity(StrEnum):
    BASE = "base"
    FULL = "full"


class TraceControl(Model):
    """Every `interval` steps a window of `continuous_iterations` steps is traced in detail."""

    enabled: bool
    interval: int = Field(ge=1, le=MAX_TRACE_INTERVAL)
    continuous_iterations: int = Field(ge=1, le=MAX_TRACE_INTERVAL)
    granularity: TraceGranularity


class TraceControlStatus(Model):
    """What was asked for, and what the ranks say is in force."""

    requested: TraceControl | None = Field(description="the last wish; null: none, the job's own flags hold")
    in_force: TraceControl | None = Field(description="what the rank heard last says")
    ranks: int = Field(description="ranks that have said what is in force")
    ranks_confirmed: int = Field(
        description="how many of them follow `requested`, or agree with `in_force` without one"
    )


class AttachedDegree(StrEnum):
    FULL = "full"
    STEPS = "steps"
    COLLECTIVES = "collectives"


class Job(Model):
    run: str
    job: str = Field(description="<namespace>/<name>")
    namespace: str
    name: str
    attempt: int
    state: JobState
    state_reason: str = Field(description="why, as a word of the operator's; empty: nobody said")
    state_message: str = Field(description="why, in the operator's words")
    attached: AttachedDegree | None = Field(
        description="what is seen of a program that is not the trainer's own; null: it is, or nobody has told"
    )
    sizes: Sizes
    step: int = Field(description="newest step that a rank has finished; 0: none")
    total_steps: int = Field(description="0: not known")
    step_seconds: float | None = Field(description="median of the newest steps, slowest rank of each")
    loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    tokens_per_second: float | None
    tflops_per_gpu: float | None
    non_finite: tuple[str, ...] = Field(description="which of the values above are NaN or infinite in the newest step")
    loss_trend: tuple[float, ...] = Field(
        description="at some of the steps that are remembered, evenly, the newest last"
    )
    eta_seconds: float | None
    ranks_connected: int
    ranks_silent: int = Field(description="of these, ranks that have said nothing for three seconds")
    slow_ranks: tuple[int, ...] = Field(description="ranks of these findings that name who is slow or hangs")
    open_findings: int = Field(
        description="open findings that have paged; of a job that has ended: those that were open at its end"
    )
    trace_control: TraceControl | None = Field(description="in force")
    started_unix_seconds: float | None = Field(description="when it was first heard of")
    updated_unix_seconds: float


class Recipe(Model):
    """What the run was started with, by name: enough to compare two runs."""

    settings: dict[str, str] = Field(description="flags without dashes")
    versions: dict[str, str] = Field(description="libraries")


class Evaluation(Model):
    split: str = Field(description="valid or test")
    step: int
    loss: float | None = Field(description="null: not known, or not finite")
    microbatches: int


class JobDetail(Job):
    """A job with what lists and events leave out."""

    recipe: Recipe | None = Field(description="null: no rank has told it")
    evaluations: list[Evaluation] = Field(description="the newest, ordered by step")


class RankPlacement(Model):
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int


class GpuTelemetry(Model):
    sm_clock_mhz: int
    sm_clock_max_mhz: int
    clock_event_reasons: int
    temperature_celsius: int
    power_watts: float | None
    ecc_volatile_uncorrected: int
    remapped_rows: int
    pcie_replays: int
    utilization_percent: int
    other_processes: int


class Memory(Model):
    """Of the device: by tensors, reserved by the allocator, the most by tensors in the last step, and all there is; of
    the process: what is resident. 0: not known."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    device_bytes: int
    host_bytes: int


class Rank(Model):
    rank: int
    node: str
    gpu_uuid: str
    device: Literal["cpu", "cuda", "unknown"]
    device_id: str = Field(description="of the physical device, equal over attempts; empty: not known")
    device_name: str = Field(description="its model; empty: not known")
    role: str = Field(description="what a plug-in has it do beyond its place; empty: nothing")
    local_rank: int
    placement: RankPlacement
    connected: bool
    ended: bool = Field(description="it has said that it ends; one that is not connected and has not is silent")
    step: int = Field(description="newest step that the rank has finished")
    activity: str = Field(description="innermost open span of the training thread; empty between steps")
    activity_seconds: float | None = Field(description="how long it had been open at the last heartbeat")
    heartbeat_age_seconds: float | None
    dropped: int = Field(description="events that the rank could not keep")
    gpu: GpuTelemetry | None
    memory: Memory | None


class RankStatus(Model):
    """Where a rank of any job is, and whether it is heard."""

    run: str
    rank: int
    node: str
    device: Literal["cpu", "cuda", "unknown"]
    local_rank: int
    connected: bool
    ended: bool = Field(description="it has said that it ends; one that is not connected and has not is silent")
    heartbeat_age_seconds: float | None


class Metrics(Model):
    """Series over the newest steps; all arrays have one length and are ordered by step."""

    step: list[int]
    unix_seconds: list[float] = Field(description="arrival of the step's first summary")
    step_seconds: list[float | None] = Field(description="slowest rank")
    loss: list[float | None]
    learning_rate: list[float | None]
    grad_norm: list[float | None]
    tokens_per_second: list[float | None]
    tflops_per_gpu: list[float | None]


class Timeline(Model):
    """One row per (step, rank), ordered by step, then rank; all arrays have one length."""

    origin_unix_seconds: float = Field(description="start of the earliest row; the other starts count from it")
    step: list[int]
    rank: list[int]
    start_seconds: list[float]
    duration_seconds: list[float]
    compute_seconds: list[float] = Field(description="forward and backward (CPU ranks: CPU time)")
    wait_seconds: list[float] = Field(description="p2p and collectives")
    host_seconds: list[float] = Field(description="data, launch lag, and what is neither compute nor wait")
    traced: list[bool] = Field(description="detail of the step is stored")


class Clock(Model):
    """How a rank's clock is converted to job time, and how well."""

    rank: int
    node: str
    offset_ns: int
    drift_ppm: float | None
    error_ns: int = Field(description="uncertainty of a converted time")
    residual_median_ns: int = Field(description="on anchors that the fit has not seen")
    residual_p90_ns: int
    raw_residual_median_ns: int = Field(description="the same without the fit")
    fitted: bool
    anchors: int


# ---- events (WebSocket) ----


class StepRow(Model):
    """One step of Metrics."""

    step: int
    unix_seconds: float
    step_seconds: float | None
    loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    tokens_per_second: float | None
    tflops_per_gpu: float | None


class SnapshotEvent(Model):
    """The first message of a stream: everything as it is now."""

    type: Literal["snapshot"] = "snapshot"
    jobs: list[Job]
    findings: list[Finding]
    annotations: list[Annotation] = Field(description="of these findings, the oldest of each first")


class JobEvent(Model):
    """A job as it is now. A slow viewer gets the newest state only."""

    type: Literal["job"] = "job"
    job: Job


class JobGoneEvent(Model):
    """A job that is no longer listed."""

    type: Literal["job_gone"] = "job_gone"
    run: str


class StepEvent(Model):
    """A step that a rank has finished, or better known. A slow viewer may miss some; Metrics has them all."""

    type: Literal["step"] = "step"
    run: str
    row: StepRow


class FindingEvent(Model):
    """A finding that opened, changed or was resolved. Never left out; a slow viewer gets its newest state."""

    type: Literal["finding"] = "finding"
    finding: Finding


class AnnotationEvent(Model):
    """Somebody said something of a finding. Never left out."""

    type: Literal["annotation"] = "annotation"
    annotation: Annotation


class PingEvent(Model):
    """Sent every two seconds, so that whoever hears none for longer knows that what is shown is old."""

    type: Literal["ping"] = "ping"
    unix_seconds: float
    collector_lost_unix_seconds: float | None = Field(
        description="since when a trace-collector has not answered; null: all do"
    )


Event = Annotated[
    SnapshotEvent | JobEvent | JobGoneEvent | StepEvent | FindingEvent | AnnotationEvent | PingEvent,
    Field(discriminator="type"),
]


class ScopeTicket(Model):
    """Opens one WebSocket of MegaScope, once."""

    ticket: str
    expires_unix_seconds: float


class ScopeModel(Model):
    """A model that MegaScope sees: its ranks are connected."""

    run: str
    job: str
    roles: list[str] = Field(description="what can be asked of it: generate, perturb, train")
    layers: int
    ranks: int


class AuditEntry(Model):
    """What somebody did to a model. `outcome` is empty where it is only asked for, else `done` or `refused`; both bear
    one `command`."""

    unix_seconds: float
    by: str
    action: str
    detail: str
    reason: str
    outcome: str
    command: str


class Recording(Model):
    """What a viewer of MegaScope saw, kept: GET …/recordings/{id}/file is the `.mscope` file."""

    id: str
    name: str
    run: str
    job: str
    by: str = Field(description="who made it or brought it")
    view: str = Field(description="the page's address that shows it, path and query; empty: not known")
    snapshot: bool = Field(description="one moment")
    recorded_unix_seconds: float
    seconds: float
    frames: int
    events: int
    bytes: int
    expires_unix_seconds: float | None = Field(description="when it is deleted; null: not by itself")
