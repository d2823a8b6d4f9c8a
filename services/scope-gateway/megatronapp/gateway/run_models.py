"""The REST API's values of a run as a whole: its history, where its time went, what happened when, its recipe."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from megatronapp.gateway.models import Evaluation, Model


class SeriesName(StrEnum):
    LOSS = "loss"
    LEARNING_RATE = "learning_rate"
    GRAD_NORM = "grad_norm"
    TOKENS_PER_SECOND = "tokens_per_second"
    TFLOPS_PER_GPU = "tflops_per_gpu"
    STEP_SECONDS = "step_seconds"
    BUBBLE_RATIO = "bubble_ratio"
    DEVICE_MEMORY_BYTES = "device_memory_bytes"
    HOST_MEMORY_BYTES = "host_memory_bytes"


class Series(Model):
    """One value over the bins; null: not known in any of a bin's steps."""

    name: SeriesName
    mean: list[float | None]
    min: list[float | None] | None = Field(description="null: as `mean`, since no bin has more than one step")
    max: list[float | None] | None = Field(description="as `min`")
    non_finite: list[int] = Field(description="bins in which the value was NaN or infinite at least once")


class AttemptHistory(Model):
    """One attempt in bins of consecutive steps. Its first and its last step are bins of their own."""

    attempt: int
    started_unix_seconds: float = Field(description="when its first rank connected")
    ended_unix_seconds: float | None = Field(description="when it was heard last; null: it goes on")
    ended_well: bool = Field(description="all ranks ended in good order")
    kept_to_step: int | None = Field(description="a later attempt did the steps after this one again; null: all count")
    first_step: list[int] = Field(description="of each bin")
    last_step: list[int] = Field(description="of each bin, inclusive")
    unix_seconds: list[float] = Field(description="when each bin's last step ended")
    series: list[Series] = Field(description="those that are known at all")
    evaluations: list[Evaluation]


class RunHistory(Model):
    run: str
    job: str
    attempts: list[AttemptHistory] = Field(description="ascending")


class Part(StrEnum):
    COMPUTE = "compute"
    """Steps, less what follows: computing and the communication that belongs to it."""
    BUBBLE = "bubble"
    """Mean time of a rank in messages between stages, less what slow ranks explain."""
    SLOW = "slow"
    """What findings of slow ranks, links and hosts cost by the detector's estimate."""
    HANG = "hang"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    START = "start"
    """From a start to the end of its first step, and from a failure to the next start."""
    PAUSE = "pause"
    """Between attempts, where the one before ended in good order."""
    REDONE = "redone"
    """Steps that a later attempt did again."""
    OTHER = "other"
    """Between steps and after the last one, unexplained."""


class PartSeconds(Model):
    part: Part
    seconds: float
    share: float = Field(description="of the whole, 0 to 1")


class FindingCost(Model):
    finding: str
    seconds: float


class TimeSpent(Model):
    """Where the time of a run went; the parts add up to `wall_seconds`."""

    from_unix_seconds: float
    to_unix_seconds: float
    wall_seconds: float
    parts: list[PartSeconds] = Field(description="all of them, in the order of the enumeration")
    findings: list[FindingCost] = Field(description="what each cost of `slow` and `hang`, the costliest first")


class FindingMarker(Model):
    kind: Literal["finding"] = "finding"
    finding: str
    attempt: int
    step: int
    until_step: int | None = Field(description="null: it is open, or its attempt ended with it")
    unix_seconds: float
    until_unix_seconds: float | None


class CheckpointMarker(Model):
    kind: Literal["checkpoint"] = "checkpoint"
    attempt: int
    step: int = Field(description="the step before it")
    unix_seconds: float


class EvaluationMarker(Model):
    kind: Literal["evaluation"] = "evaluation"
    attempt: int
    step: int
    unix_seconds: float | None
    split: str
    loss: float | None


class StartMarker(Model):
    """A start after the first one."""

    kind: Literal["start"] = "start"
    attempt: int
    step: int = Field(description="the first that it did")
    unix_seconds: float
    after_failure: bool = Field(description="false: the attempt before ended in good order")


Marker = Annotated[FindingMarker | CheckpointMarker | EvaluationMarker | StartMarker, Field(discriminator="kind")]


class Difference(Model):
    name: str
    values: tuple[str | None, ...] = Field(description="of each run, in the order asked; null: it has none")


class RecipeDifference(Model):
    """What the recipes of several runs differ in, by name."""

    runs: list[str]
    settings: list[Difference]
    versions: list[Difference]
    equal: int = Field(description="settings and versions that are equal in all of them")
