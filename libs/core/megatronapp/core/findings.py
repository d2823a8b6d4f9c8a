"""Findings as values: closed vocabularies, validation, and conversion to protobuf and JSON."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

from google.protobuf import json_format
from pydantic import BaseModel, ConfigDict, Field, field_serializer

from megatronapp.v1 import findings_pb2


class Kind(StrEnum):
    SLOW_GPU = "slow_gpu"
    SLOW_LINK = "slow_link"
    SLOW_HOST = "slow_host"
    HANG = "hang"
    IMBALANCE = "imbalance"
    FABRIC_SLOW = "fabric_slow"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    COMPUTE = "compute"
    MEMORY_BOUND = "memory_bound"
    INTERFERENCE = "interference"
    THERMAL = "thermal"
    NVLINK = "nvlink"
    NIC = "nic"
    HOST_CPU = "host_cpu"
    DATA_LOADING = "data_loading"
    GARBAGE_COLLECTION = "garbage_collection"
    SEQUENCE_LENGTH = "sequence_length"
    STAGE = "stage"
    EXPERT = "expert"
    CHECKPOINT = "checkpoint"
    DEADLOCK = "deadlock"
    UNKNOWN = "unknown"


class State(StrEnum):
    OPEN = "open"
    RESOLVED = "resolved"


REFUTABLE = frozenset(Kind) - {Kind.HANG}
"""What a person may call none. Nothing moves in a hang, whatever anybody says; it is over when something does."""
MAX_DEVICES = 16
"""Of one finding. What concerns more ranks than these is no matter of single devices."""


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_serialization_defaults_required=True)


class Worker(Value):
    """A pipeline stage of one data-parallel replica: what can be slow as one."""

    dp: int
    pp: int


class Evidence(Value):
    """One measured reason, with the series that shows it. All three series have one length."""

    signal: str
    text: str
    unit: str = "ratio"
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    expected: tuple[float, ...] = ()


class Finding(Value):
    """A verdict; field meanings are those of findings.proto."""

    id: str
    run: str = ""
    job: str = ""
    attempt: int = 1
    kind: Kind
    cause: Cause
    ranks: tuple[int, ...] = ()
    workers: tuple[Worker, ...] = ()
    node: str = ""
    gpu_uuid: str = ""
    since_step: int | None = None
    effect_ratio: float = Field(default=1.0, ge=0)
    cost_ratio: float = Field(default=1.0, ge=0)
    confidence: float = Field(default=0.0, ge=0, le=1)
    state: State = State.OPEN
    page: bool = False
    evidence: tuple[Evidence, ...] = ()
    summary: str = ""
    advice: str = ""
    opened_unix_ns: int = 0
    resolved_unix_ns: int = 0
    opened_step: int = 0
    resolved_step: int | None = None
    updated_unix_ns: int = 0
    since_unix_ns: int = 0
    devices: tuple[str, ...] = ()
    opened_attempt: int = 0
    refuted_unix_ns: int = 0

    @property
    def refuted(self) -> bool:
        """Whether a person has said that it is none."""
        return self.refuted_unix_ns > 0

    @property
    def open_at_end(self) -> bool:
        """Whether its attempt ended with it: nobody has seen it get better."""
        return self.state is State.RESOLVED and self.resolved_step is None and not self.refuted

    @field_serializer("effect_ratio", "cost_ratio", when_used="json")
    def _finite(self, ratio: float) -> float | None:
        """JSON has no infinity: a hang's cost, which is infinite, is null."""
        return ratio if math.isfinite(ratio) else None

    def to_proto(self) -> findings_pb2.Finding:
        fields = self.model_dump(mode="python")
        for name in ("kind", "cause", "state"):
            fields[name] = str(fields[name])
        return findings_pb2.Finding(**{k: v for k, v in fields.items() if v is not None})

    @classmethod
    def from_proto(cls, message: findings_pb2.Finding) -> Finding:
        fields: dict[str, Any] = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return cls.model_validate(fields)
