"""What the operator says of a TrainingJob."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from megatronapp.core.trainingjob.base import Model


class Phase(StrEnum):
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    SUSPENDED = "Suspended"
    PODS_READY = "PodsReady"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    DEGRADED = "Degraded"
    COMPLETE = "Complete"
    FAILED = "Failed"
    INVALID_TEMPLATE = "InvalidTemplate"
    RECONCILE_ERROR = "ReconcileError"


class Reason(StrEnum):
    """Why a condition is as it is: the closed list."""

    CREATED = "Created"
    UNSCHEDULABLE = "Unschedulable"
    QUEUED = "Queued"
    PODS_STARTING = "PodsStarting"
    PODS_READY = "PodsReady"
    TRAINING = "Training"
    SUSPENDED_BY_USER = "SuspendedByUser"
    RESUMED = "Resumed"
    RANK_FAILED = "RankFailed"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    REMEDIATION = "Remediation"
    SLOW_RANKS = "SlowRanks"
    HEALTHY = "Healthy"
    COMPLETED = "Completed"
    NON_RETRIABLE_EXIT_CODE = "NonRetriableExitCode"
    PLUGIN_MISSING = "PluginMissing"
    RESTARTS_EXHAUSTED = "RestartsExhausted"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    TEMPLATE_REFUSED = "TemplateRefused"
    SPEC_REFUSED = "SpecRefused"
    ACCEPTED = "Accepted"
    STOPPING = "Stopping"
    RESIZED = "Resized"
    UNEXPECTED_ERROR = "UnexpectedError"
    UNREADABLE_OBJECT = "UnreadableObject"
    RECONCILED = "Reconciled"
    STARTUP_TIMEOUT = "StartupTimeout"
    # Kubernetes' own, of pods that do not start
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    INVALID_IMAGE_NAME = "InvalidImageName"
    ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull"
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    CREATE_CONTAINER_ERROR = "CreateContainerError"
    FAILED_CREATE = "FailedCreate"
    FAILED_MOUNT = "FailedMount"
    FAILED_ATTACH_VOLUME = "FailedAttachVolume"
    FAILED_CREATE_POD_SAND_BOX = "FailedCreatePodSandBox"


class StatusModel(Model):
    """Of what the operator itself wrote, perhaps a newer one."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class BackendStatus(StatusModel):
    kind: Literal["Job", "JobSet"]
    name: str


class NodesStatus(StatusModel):
    desired: int = 0
    ready: int = 0
    summary: str = Field(default="", description="ready/desired, for the printer column")


class Progress(StatusModel):
    iteration: int = 0
    total: int = 0
    percent: int = 0
    eta_seconds: int | None = None
    iteration_millis: int | None = None
    summary: str = Field(default="", description="iteration/total, for the printer column")
    last_updated: str = ""


class FindingsStatus(StatusModel):
    slow_ranks: list[int] = Field(default_factory=list)
    worst_slowdown: str = Field(default="", description="a ratio, as text: the API has no floating point")
    node: str = ""
    summary: str = Field(default="", description="ranks and node, for the printer column")
    last_found: str = ""


class ExcludedNode(StatusModel):
    name: str
    since: str = ""
    until: str = ""


class Status(StatusModel):
    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    conditions: list[Condition] = Field(default_factory=list)
    attempt: int = 0
    restarts: int = 0
    backend: BackendStatus | None = None
    nodes: NodesStatus = NodesStatus()
    progress: Progress | None = None
    findings: FindingsStatus | None = None
    excluded_nodes: list[ExcludedNode] = Field(default_factory=list)
    start_time: str | None = None
    completion_time: str | None = None
    consecutive_failures: int = Field(default=0, description="without a good run between; they double the back-off")
    next_attempt_time: str | None = Field(default=None, description="while the job backs off")
    startup_failing_since: str | None = Field(default=None, description="since when its pods can't start")

    @field_validator("conditions", mode="before")
    @classmethod
    def _known(cls, given: object) -> object:
        """Without conditions or reasons of a newer operator, as there are after a rollback: they are told anew."""
        if not isinstance(given, list):
            return given
        types, reasons = set(ConditionType), set(Reason)
        return [
            one
            for one in given
            if not isinstance(one, dict) or (one.get("type") in types and one.get("reason") in reasons)
        ]
