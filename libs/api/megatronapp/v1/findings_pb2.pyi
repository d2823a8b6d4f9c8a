from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Finding(_message.Message):
    __slots__ = ("id", "run", "job", "attempt", "kind", "cause", "ranks", "workers", "node", "gpu_uuid", "since_step", "effect_ratio", "cost_ratio", "confidence", "state", "page", "evidence", "summary", "advice", "opened_unix_ns", "resolved_unix_ns", "opened_step", "resolved_step", "updated_unix_ns", "since_unix_ns", "devices", "opened_attempt", "refuted_unix_ns")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    EFFECT_RATIO_FIELD_NUMBER: _ClassVar[int]
    COST_RATIO_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    OPENED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    OPENED_STEP_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_STEP_FIELD_NUMBER: _ClassVar[int]
    UPDATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    OPENED_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REFUTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: str
    job: str
    attempt: int
    kind: str
    cause: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    node: str
    gpu_uuid: str
    since_step: int
    effect_ratio: float
    cost_ratio: float
    confidence: float
    state: str
    page: bool
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    summary: str
    advice: str
    opened_unix_ns: int
    resolved_unix_ns: int
    opened_step: int
    resolved_step: int
    updated_unix_ns: int
    since_unix_ns: int
    devices: _containers.RepeatedScalarFieldContainer[str]
    opened_attempt: int
    refuted_unix_ns: int
    def __init__(self, id: _Optional[str] = ..., run: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., cause: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., node: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., since_step: _Optional[int] = ..., effect_ratio: _Optional[float] = ..., cost_ratio: _Optional[float] = ..., confidence: _Optional[float] = ..., state: _Optional[str] = ..., page: _Optional[bool] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., summary: _Optional[str] = ..., advice: _Optional[str] = ..., opened_unix_ns: _Optional[int] = ..., resolved_unix_ns: _Optional[int] = ..., opened_step: _Optional[int] = ..., resolved_step: _Optional[int] = ..., updated_unix_ns: _Optional[int] = ..., since_unix_ns: _Optional[int] = ..., devices: _Optional[_Iterable[str]] = ..., opened_attempt: _Optional[int] = ..., refuted_unix_ns: _Optional[int] = ...) -> None: ...

class Refutation(_message.Message):
    __slots__ = ("finding", "unix_ns")
    FINDING_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    finding: str
    unix_ns: int
    def __init__(self, finding: _Optional[str] = ..., unix_ns: _Optional[int] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("dp", "pp")
    DP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    dp: int
    pp: int
    def __init__(self, dp: _Optional[int] = ..., pp: _Optional[int] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("signal", "text", "unit", "steps", "values", "expected")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    signal: str
    text: str
    unit: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    expected: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, signal: _Optional[str] = ..., text: _Optional[str] = ..., unit: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ..., expected: _Optional[_Iterable[float]] = ...) -> None: ...
