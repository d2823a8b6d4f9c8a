"""What the detector can be told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from megatronapp.core.findings_store.limits import MIN_BYTES, MIN_FINDINGS, Limits
from megatronapp.core.quarantine import user_folder
from megatronapp.core.settings import ServiceSettings
from megatronapp.detector.patience import START_SECONDS

LIMITS = Limits()


class DetectorSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_DETECTOR_", extra="forbid", frozen=True)

    quarantine_dir: Path = Field(
        default_factory=partial(user_folder, "detector"), description="records that can't be judged are set aside here"
    )
    findings_store: str = Field(
        default="", description="memory, sqlite:PATH or redis; empty: redis where redis_url is set, else memory"
    )
    findings_retention_seconds: float = Field(
        default=LIMITS.retention_seconds, gt=0, description="a finding is deleted this long after it was last written"
    )
    max_findings: int = Field(
        default=LIMITS.max_findings,
        ge=MIN_FINDINGS,
        description="above this number resolved findings are deleted, then open ones",
    )
    max_findings_bytes: int = Field(default=LIMITS.max_bytes, ge=MIN_BYTES, description="likewise, above this size")
    replica: str = Field(
        default="", description="this replica's name where several share the jobs, over redis_url; empty: it has all"
    )
    return_seconds: float = Field(
        default=30.0, ge=0, description="after a start, jobs with open findings have so long to be heard of again"
    )
    tick_seconds: float = Field(default=0.25, gt=0, le=10, description="how often time is looked at")
    top_ranks: int = Field(default=16, ge=1, le=1024, description="most ranks of a job with metrics of their own")
    start_patience_seconds: float = Field(
        default=START_SECONDS, ge=60, description="a start, or a first checkpoint or evaluation, hangs after so long"
    )
    keep_ended_seconds: float = Field(default=60.0, ge=0, description="a job's metrics stay so long after its end")
    keep_silent_seconds: float = Field(default=900.0, ge=1, description="a job not heard of for so long has ended")

    @property
    def findings_limits(self) -> Limits:
        return Limits(self.findings_retention_seconds, self.max_findings, self.max_findings_bytes)
