"""What the detector can be told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from megatronapp.core.quarantine import user_folder
from megatronapp.core.settings import ServiceSettings
from megatronapp.detector.patience import START_SECONDS


class DetectorSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_DETECTOR_", extra="forbid", frozen=True)

    quarantine_dir: Path = Field(
        default_factory=partial(user_folder, "detector"), description="records that can't be judged are set aside here"
    )
    tick_seconds: float = Field(default=0.25, gt=0, le=10, description="how often time is looked at")
    top_ranks: int = Field(default=16, ge=1, le=1024, description="most ranks of a job with metrics of their own")
    start_patience_seconds: float = Field(
        default=START_SECONDS, ge=60, description="a start, or a first checkpoint or evaluation, hangs after so long"
    )
    keep_ended_seconds: float = Field(default=60.0, ge=0, description="a job's metrics stay so long after its end")
    keep_silent_seconds: float = Field(default=900.0, ge=1, description="a job not heard of for so long has ended")
