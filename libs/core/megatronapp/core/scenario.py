"""Fault scenarios: what is broken on purpose, where, and in which steps."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megatronapp.core.errors import ConfigError
from megatronapp.core.yaml_text import load_yaml


class FaultKind(StrEnum):
    SLOW_COMPUTE = "slow_compute"
    HOST_STALL = "host_stall"
    LATE_LINK = "late_link"
    DATA_STALL = "data_stall"
    HANG = "hang"
    SKIP_COLLECTIVE = "skip_collective"
    WRONG_SIZE = "wrong_size"
    WRONG_ORDER = "wrong_order"
    KILL = "kill"


PROGRAM = frozenset({FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_SIZE, FaultKind.WRONG_ORDER})
"""The rank calls another collective than the others."""
_WITHOUT_SIZE = PROGRAM | {FaultKind.HANG, FaultKind.KILL}


class HangSide(StrEnum):
    DEVICE = "device"
    HOST = "host"


class Fault(BaseModel):
    """One fault. It is bound to ranks, pipeline stages or a node, and active in steps [from_step, to_step]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    ranks: tuple[int, ...] = Field(default=(), max_length=1024)
    stages: tuple[int, ...] = Field(default=(), max_length=1024)
    node: str = Field(default="", max_length=253)
    from_step: int = Field(ge=1)
    to_step: int | None = Field(default=None, description="inclusive; absent: to the end")
    effect_ratio: float | None = Field(default=None, gt=1, le=20, description="1.2 = 20 % slower; slow_compute only")
    seconds: float | None = Field(default=None, gt=0, le=3600, description="per step (late_link: per message)")
    jitter_ratio: float = Field(default=0.0, ge=0, le=1, description="the size varies by up to this, drawn per step")
    every: int = Field(default=1, ge=1, description="active in every n-th step only, from from_step on")
    side: HangSide | None = Field(default=None, description="hang only: what stands still; default device")

    @model_validator(mode="after")
    def _one_target_one_size(self) -> Self:
        if sum(bool(target) for target in (self.ranks, self.stages, self.node)) != 1:
            raise ValueError("name exactly one of ranks, stages and node")
        if self.to_step is not None and self.to_step < self.from_step:
            raise ValueError("to_step lies before from_step")
        if self.kind is FaultKind.SLOW_COMPUTE and (self.effect_ratio is None or self.seconds is not None):
            raise ValueError("slow_compute takes effect_ratio, not seconds")
        if self.kind in {FaultKind.HOST_STALL, FaultKind.LATE_LINK, FaultKind.DATA_STALL} and (
            self.seconds is None or self.effect_ratio is not None
        ):
            raise ValueError(f"{self.kind} takes seconds, not effect_ratio")
        if self.kind in _WITHOUT_SIZE and (self.seconds is not None or self.effect_ratio is not None):
            raise ValueError(f"{self.kind} takes neither effect_ratio nor seconds")
        if self.kind is not FaultKind.HANG and self.side is not None:
            raise ValueError("side belongs to hang")
        return self

    def hits(self, *, rank: int, stage: int, node: str) -> bool:
        return rank in self.ranks or stage in self.stages or (bool(self.node) and node == self.node)

    def active(self, step: int) -> bool:
        """Whether the fault acts in this step; steps count from 1."""
        inside = self.from_step <= step and (self.to_step is None or step <= self.to_step)
        return inside and (step - self.from_step) % self.every == 0


class Scenario(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    faults: tuple[Fault, ...] = Field(default=(), max_length=64)

    @classmethod
    def load(cls, path: Path) -> Scenario:
        """Read a scenario file. Raises ConfigError naming the file and the key."""
        try:
            found = load_yaml(path.read_bytes(), str(path)) or {}
            if not isinstance(found, dict):
                raise ConfigError(f"{path} holds no scenario: write `faults:` and a list below it")
            return cls.model_validate(found)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "scenario"
            raise ConfigError(" ".join(f"{path}: {where}: {first['msg']}".split())) from error
