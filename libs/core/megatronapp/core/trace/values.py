"""What a rank says of itself, as plain values: the trainer and its plug-ins import no protobuf.

Fields and numbers are those of proto/megatronapp/v1/trace.proto, whose comments explain them; a test compares the two.
`megatronapp.core.trace.wire` makes messages of these values, beside the training process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Device(IntEnum):
    UNSPECIFIED = 0
    CPU = 1
    CUDA = 2


class Attached(IntEnum):
    UNSPECIFIED = 0
    SCHEDULES = 1
    PROGRAM = 2


class Phase(IntEnum):
    UNSPECIFIED = 0
    FIRST_STEP = 1
    EVALUATION = 2
    CHECKPOINT = 3
    COMPILE = 4
    START = 5
    PAUSE = 6
    STEP = 7
    WATCHED = 8


class Granularity(IntEnum):
    UNSPECIFIED = 0
    BASE = 1
    FULL = 2


class SpanKind(IntEnum):
    UNSPECIFIED = 0
    COMPUTE = 1
    P2P = 2
    COLLECTIVE = 3
    HOST = 4
    PHASE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    run: str
    job: str
    attempt: int
    rank: int
    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSizes:
    world: int = 1
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    virtual_pipeline: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    node: str
    gpu_uuid: str = ""
    tensor: int = 0
    pipeline: int = 0
    data: int = 0
    context: int = 0
    expert: int = 0
    sizes: ParallelSizes = field(default=ParallelSizes())
    host_unix_ns: int = 0
    host_clock_ns: int = 0
    local_rank: int = 0
    pid: int = 0
    device_id: str = ""
    device_name: str = ""
    role: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    name: str
    microbatches: int = 0
    total_steps: int = 0
    first_step: int = 0
    sequence_length: int = 0
    micro_batch_size: int = 0
    parameters: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Communicator:
    index: int
    id: str
    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """None: not known on this rank."""

    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    total_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    split: str
    loss: float | None
    microbatches: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    name: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """settings: every flag that has a value, sorted by name; versions: libraries."""

    settings: tuple[Setting, ...] = ()
    versions: tuple[Setting, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    identity: Identity
    placement: Placement
    schedule: Schedule
    device: Device
    communicators: tuple[Communicator, ...] = ()
    recipe: Recipe = field(default=Recipe())
    attached: Attached = Attached.UNSPECIFIED


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceControl:
    enabled: bool
    interval: int
    continuous_iterations: int
    granularity: Granularity
