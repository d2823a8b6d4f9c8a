"""Where TrainingJobs stand, as the operator tells one gateway and this tells the others."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from megatronapp.core.errors import DataError
from megatronapp.core.trace.validate import check_identity
from megatronapp.core.trainingjob import Phase
from megatronapp.gateway.models import Model
from megatronapp.gateway.state import ReportedPhase
from megatronapp.v1 import trace_pb2

KEY = "jobs"
"""Of all messages on the bus: each tells of many jobs."""
MAX_AT_ONCE = 500
MAX_SECONDS = 1e11
OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED})


class JobPhase(Model):
    """One TrainingJob."""

    run: str = Field(max_length=256, description="its uid")
    job: str = Field(max_length=256, description="<namespace>/<name>")
    phase: Phase | None = Field(description="null: there is no such TrainingJob any more")
    reason: str = Field(default="", max_length=64, description="why, as one word; empty: nothing to tell")
    message: str = Field(default="", max_length=1024, description="why, in plain words")
    since_unix_seconds: float = Field(default=0, ge=0, le=MAX_SECONDS, description="since when")

    @model_validator(mode="after")
    def _plausible(self) -> Self:
        try:
            check_identity(trace_pb2.Identity(run=self.run, job=self.job, attempt=1))
        except DataError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def reported(self) -> ReportedPhase | None:
        if self.phase is None:
            return None
        return ReportedPhase(self.phase, int(self.since_unix_seconds * 1e9), self.reason, self.message)


class JobPhases(Model):
    """Jobs that it does not name stay as they were."""

    jobs: Annotated[list[JobPhase], Field(max_length=MAX_AT_ONCE)]


def decode_phases(value: bytes) -> list[JobPhase]:
    """Raises DataError."""
    try:
        return JobPhases.model_validate_json(value).jobs
    except ValidationError as error:
        raise DataError(f"no phases of jobs: {error.errors()[0]['msg']}") from error
