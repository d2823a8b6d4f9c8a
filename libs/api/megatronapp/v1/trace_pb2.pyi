from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Granularity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRANULARITY_UNSPECIFIED: _ClassVar[Granularity]
    GRANULARITY_BASE: _ClassVar[Granularity]
    GRANULARITY_FULL: _ClassVar[Granularity]

class Attached(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTACHED_UNSPECIFIED: _ClassVar[Attached]
    ATTACHED_SCHEDULES: _ClassVar[Attached]
    ATTACHED_PROGRAM: _ClassVar[Attached]

class Device(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_UNSPECIFIED: _ClassVar[Device]
    DEVICE_CPU: _ClassVar[Device]
    DEVICE_CUDA: _ClassVar[Device]

class SpanKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPAN_KIND_UNSPECIFIED: _ClassVar[SpanKind]
    SPAN_KIND_COMPUTE: _ClassVar[SpanKind]
    SPAN_KIND_P2P: _ClassVar[SpanKind]
    SPAN_KIND_COLLECTIVE: _ClassVar[SpanKind]
    SPAN_KIND_HOST: _ClassVar[SpanKind]
    SPAN_KIND_PHASE: _ClassVar[SpanKind]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_FIRST_STEP: _ClassVar[Phase]
    PHASE_EVALUATION: _ClassVar[Phase]
    PHASE_CHECKPOINT: _ClassVar[Phase]
    PHASE_COMPILE: _ClassVar[Phase]
    PHASE_START: _ClassVar[Phase]
    PHASE_PAUSE: _ClassVar[Phase]
    PHASE_STEP: _ClassVar[Phase]
    PHASE_WATCHED: _ClassVar[Phase]

class ExportFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPORT_FORMAT_UNSPECIFIED: _ClassVar[ExportFormat]
    EXPORT_FORMAT_CHROME_JSON: _ClassVar[ExportFormat]
    EXPORT_FORMAT_PERFETTO: _ClassVar[ExportFormat]
GRANULARITY_UNSPECIFIED: Granularity
GRANULARITY_BASE: Granularity
GRANULARITY_FULL: Granularity
ATTACHED_UNSPECIFIED: Attached
ATTACHED_SCHEDULES: Attached
ATTACHED_PROGRAM: Attached
DEVICE_UNSPECIFIED: Device
DEVICE_CPU: Device
DEVICE_CUDA: Device
SPAN_KIND_UNSPECIFIED: SpanKind
SPAN_KIND_COMPUTE: SpanKind
SPAN_KIND_P2P: SpanKind
SPAN_KIND_COLLECTIVE: SpanKind
SPAN_KIND_HOST: SpanKind
SPAN_KIND_PHASE: SpanKind
PHASE_UNSPECIFIED: Phase
PHASE_FIRST_STEP: Phase
PHASE_EVALUATION: Phase
PHASE_CHECKPOINT: Phase
PHASE_COMPILE: Phase
PHASE_START: Phase
PHASE_PAUSE: Phase
PHASE_STEP: Phase
PHASE_WATCHED: Phase
EXPORT_FORMAT_UNSPECIFIED: ExportFormat
EXPORT_FORMAT_CHROME_JSON: ExportFormat
EXPORT_FORMAT_PERFETTO: ExportFormat

class TraceMessage(_message.Message):
    __slots__ = ("seq", "hello", "batch", "summary", "heartbeat", "bundle")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hello: Hello
    batch: TraceBatch
    summary: StepSummary
    heartbeat: Heartbeat
    bundle: Bundle
    def __init__(self, seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[TraceBatch, _Mapping]] = ..., summary: _Optional[_Union[StepSummary, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("ack", "control")
    ACK_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    control: TraceControl
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ..., control: _Optional[_Union[TraceControl, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("seq", "takes_bundles")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TAKES_BUNDLES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    takes_bundles: bool
    def __init__(self, seq: _Optional[int] = ..., takes_bundles: _Optional[bool] = ...) -> None: ...

class TraceControl(_message.Message):
    __slots__ = ("enabled", "interval", "continuous_iterations", "granularity")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    interval: int
    continuous_iterations: int
    granularity: Granularity
    def __init__(self, enabled: _Optional[bool] = ..., interval: _Optional[int] = ..., continuous_iterations: _Optional[int] = ..., granularity: _Optional[_Union[Granularity, str]] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("run", "job", "attempt", "rank", "incarnation")
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    run: str
    job: str
    attempt: int
    rank: int
    incarnation: int
    def __init__(self, run: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("identity", "placement", "communicators", "device", "schedule", "recipe", "attached")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    placement: Placement
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    device: Device
    schedule: Schedule
    recipe: Recipe
    attached: Attached
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., device: _Optional[_Union[Device, str]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., attached: _Optional[_Union[Attached, str]] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("settings", "versions")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    versions: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., versions: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("node", "gpu_uuid", "tensor", "pipeline", "data", "context", "expert", "sizes", "host_unix_ns", "host_clock_ns", "local_rank", "pid", "device_id", "device_name", "role")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    HOST_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpu_uuid: str
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    sizes: ParallelSizes
    host_unix_ns: int
    host_clock_ns: int
    local_rank: int
    pid: int
    device_id: str
    device_name: str
    role: str
    def __init__(self, node: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., context: _Optional[int] = ..., expert: _Optional[int] = ..., sizes: _Optional[_Union[ParallelSizes, _Mapping]] = ..., host_unix_ns: _Optional[int] = ..., host_clock_ns: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., device_id: _Optional[str] = ..., device_name: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class ParallelSizes(_message.Message):
    __slots__ = ("world", "tensor", "pipeline", "data", "context", "expert", "virtual_pipeline")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_PIPELINE_FIELD_NUMBER: _ClassVar[int]
    world: int
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    virtual_pipeline: int
    def __init__(self, world: _Optional[int] = ..., tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., context: _Optional[int] = ..., expert: _Optional[int] = ..., virtual_pipeline: _Optional[int] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "microbatches", "total_steps", "first_step", "sequence_length", "micro_batch_size", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    microbatches: int
    total_steps: int
    first_step: int
    sequence_length: int
    micro_batch_size: int
    parameters: int
    def __init__(self, name: _Optional[str] = ..., microbatches: _Optional[int] = ..., total_steps: _Optional[int] = ..., first_step: _Optional[int] = ..., sequence_length: _Optional[int] = ..., micro_batch_size: _Optional[int] = ..., parameters: _Optional[int] = ...) -> None: ...

class Communicator(_message.Message):
    __slots__ = ("index", "id", "kind", "ranks")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    kind: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., kind: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class TraceBatch(_message.Message):
    __slots__ = ("step", "count", "names", "communicators", "start_ns", "duration_ns", "enqueue_ns", "cpu_ns", "name", "communicator", "kind", "stream", "microbatch", "chunk", "layer", "peer", "sequence", "bytes", "tokens", "length_squares", "reference_host_ns", "reference_error_ns", "dropped", "last", "base_ns", "message")
    STEP_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_SQUARES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_HOST_NS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BASE_NS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    count: int
    names: _containers.RepeatedScalarFieldContainer[str]
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    start_ns: bytes
    duration_ns: bytes
    enqueue_ns: bytes
    cpu_ns: bytes
    name: bytes
    communicator: bytes
    kind: bytes
    stream: bytes
    microbatch: bytes
    chunk: bytes
    layer: bytes
    peer: bytes
    sequence: bytes
    bytes: bytes
    tokens: bytes
    length_squares: bytes
    reference_host_ns: int
    reference_error_ns: int
    dropped: int
    last: bool
    base_ns: int
    message: bytes
    def __init__(self, step: _Optional[int] = ..., count: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., start_ns: _Optional[bytes] = ..., duration_ns: _Optional[bytes] = ..., enqueue_ns: _Optional[bytes] = ..., cpu_ns: _Optional[bytes] = ..., name: _Optional[bytes] = ..., communicator: _Optional[bytes] = ..., kind: _Optional[bytes] = ..., stream: _Optional[bytes] = ..., microbatch: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., layer: _Optional[bytes] = ..., peer: _Optional[bytes] = ..., sequence: _Optional[bytes] = ..., bytes: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., length_squares: _Optional[bytes] = ..., reference_host_ns: _Optional[int] = ..., reference_error_ns: _Optional[int] = ..., dropped: _Optional[int] = ..., last: _Optional[bool] = ..., base_ns: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...

class StepSummary(_message.Message):
    __slots__ = ("step", "start_ns", "duration_ns", "cpu_ns", "names", "communicators", "rows", "name", "kind", "chunk", "communicator", "count", "duration_sum_ns", "duration_min_ns", "duration_max_ns", "cpu_sum_ns", "cpu_min_ns", "cpu_max_ns", "launch_lag_sum_ns", "launch_lag_max_ns", "tokens", "length_squares", "bytes", "peer", "phases", "progress", "dropped", "traced", "starved_count", "starved_sum_ns", "starved_tokens", "starved_length_squares", "memory", "peak_activations", "order", "nccl", "ports")
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_SUM_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MIN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MAX_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_SUM_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_MIN_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_MAX_NS_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_LAG_SUM_NS_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_LAG_MAX_NS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_SQUARES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    STARVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    STARVED_SUM_NS_FIELD_NUMBER: _ClassVar[int]
    STARVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STARVED_LENGTH_SQUARES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PEAK_ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    start_ns: int
    duration_ns: int
    cpu_ns: int
    names: _containers.RepeatedScalarFieldContainer[str]
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    rows: int
    name: bytes
    kind: bytes
    chunk: bytes
    communicator: bytes
    count: bytes
    duration_sum_ns: bytes
    duration_min_ns: bytes
    duration_max_ns: bytes
    cpu_sum_ns: bytes
    cpu_min_ns: bytes
    cpu_max_ns: bytes
    launch_lag_sum_ns: bytes
    launch_lag_max_ns: bytes
    tokens: bytes
    length_squares: bytes
    bytes: bytes
    peer: bytes
    phases: _containers.RepeatedScalarFieldContainer[Phase]
    progress: Progress
    dropped: int
    traced: bool
    starved_count: bytes
    starved_sum_ns: bytes
    starved_tokens: bytes
    starved_length_squares: bytes
    memory: Memory
    peak_activations: int
    order: bytes
    nccl: _containers.RepeatedCompositeFieldContainer[NcclTally]
    ports: _containers.RepeatedCompositeFieldContainer[PortSends]
    def __init__(self, step: _Optional[int] = ..., start_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., cpu_ns: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., rows: _Optional[int] = ..., name: _Optional[bytes] = ..., kind: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., communicator: _Optional[bytes] = ..., count: _Optional[bytes] = ..., duration_sum_ns: _Optional[bytes] = ..., duration_min_ns: _Optional[bytes] = ..., duration_max_ns: _Optional[bytes] = ..., cpu_sum_ns: _Optional[bytes] = ..., cpu_min_ns: _Optional[bytes] = ..., cpu_max_ns: _Optional[bytes] = ..., launch_lag_sum_ns: _Optional[bytes] = ..., launch_lag_max_ns: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., length_squares: _Optional[bytes] = ..., bytes: _Optional[bytes] = ..., peer: _Optional[bytes] = ..., phases: _Optional[_Iterable[_Union[Phase, str]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., dropped: _Optional[int] = ..., traced: _Optional[bool] = ..., starved_count: _Optional[bytes] = ..., starved_sum_ns: _Optional[bytes] = ..., starved_tokens: _Optional[bytes] = ..., starved_length_squares: _Optional[bytes] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., peak_activations: _Optional[int] = ..., order: _Optional[bytes] = ..., nccl: _Optional[_Iterable[_Union[NcclTally, _Mapping]]] = ..., ports: _Optional[_Iterable[_Union[PortSends, _Mapping]]] = ...) -> None: ...

class PortSends(_message.Message):
    __slots__ = ("port", "busy_sends", "busy_ns", "busy_bytes", "communicator", "peer", "operation", "outstanding_bytes", "ended_unix_ns")
    PORT_FIELD_NUMBER: _ClassVar[int]
    BUSY_SENDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    BUSY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    port: str
    busy_sends: int
    busy_ns: int
    busy_bytes: int
    communicator: int
    peer: int
    operation: int
    outstanding_bytes: int
    ended_unix_ns: int
    def __init__(self, port: _Optional[str] = ..., busy_sends: _Optional[int] = ..., busy_ns: _Optional[int] = ..., busy_bytes: _Optional[int] = ..., communicator: _Optional[int] = ..., peer: _Optional[int] = ..., operation: _Optional[int] = ..., outstanding_bytes: _Optional[int] = ..., ended_unix_ns: _Optional[int] = ...) -> None: ...

class NcclTally(_message.Message):
    __slots__ = ("seat", "sending", "operation", "algorithm", "protocol", "size_log2", "count", "fastest_bytes", "fastest_ns", "gpu_ns", "peer_ns", "network_ns", "data_ns", "sent_bytes", "numbers", "durations_ns")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SIZE_LOG2_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FASTEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    FASTEST_NS_FIELD_NUMBER: _ClassVar[int]
    GPU_NS_FIELD_NUMBER: _ClassVar[int]
    PEER_NS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_NS_FIELD_NUMBER: _ClassVar[int]
    DATA_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_NS_FIELD_NUMBER: _ClassVar[int]
    seat: NcclSeat
    sending: bool
    operation: str
    algorithm: str
    protocol: str
    size_log2: int
    count: int
    fastest_bytes: int
    fastest_ns: int
    gpu_ns: int
    peer_ns: int
    network_ns: int
    data_ns: int
    sent_bytes: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    durations_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seat: _Optional[_Union[NcclSeat, _Mapping]] = ..., sending: _Optional[bool] = ..., operation: _Optional[str] = ..., algorithm: _Optional[str] = ..., protocol: _Optional[str] = ..., size_log2: _Optional[int] = ..., count: _Optional[int] = ..., fastest_bytes: _Optional[int] = ..., fastest_ns: _Optional[int] = ..., gpu_ns: _Optional[int] = ..., peer_ns: _Optional[int] = ..., network_ns: _Optional[int] = ..., data_ns: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ..., durations_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "device_bytes", "host_bytes")
    ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    device_bytes: int
    host_bytes: int
    def __init__(self, allocated_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., peak_allocated_bytes: _Optional[int] = ..., device_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("split", "loss", "microbatches", "step")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    split: str
    loss: float
    microbatches: int
    step: int
    def __init__(self, split: _Optional[str] = ..., loss: _Optional[float] = ..., microbatches: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tflops_per_gpu", "total_steps")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_second: float
    tflops_per_gpu: float
    total_steps: int
    def __init__(self, loss: _Optional[float] = ..., learning_rate: _Optional[float] = ..., grad_norm: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., tflops_per_gpu: _Optional[float] = ..., total_steps: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("clock_ns", "unix_ns", "step", "frontiers", "dropped", "control", "gpu", "activity", "activity_since_ns", "communicators", "thread_cpu_ns", "thread_wait_ns", "closing", "phase", "memory", "evaluations", "operations_lost", "stack", "unpassed_mark_ns")
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIERS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    THREAD_CPU_NS_FIELD_NUMBER: _ClassVar[int]
    THREAD_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_LOST_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    UNPASSED_MARK_NS_FIELD_NUMBER: _ClassVar[int]
    clock_ns: int
    unix_ns: int
    step: int
    frontiers: _containers.RepeatedCompositeFieldContainer[Frontier]
    dropped: int
    control: TraceControl
    gpu: GpuTelemetry
    activity: str
    activity_since_ns: int
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    thread_cpu_ns: int
    thread_wait_ns: int
    closing: bool
    phase: Phase
    memory: Memory
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    operations_lost: int
    stack: Stack
    unpassed_mark_ns: int
    def __init__(self, clock_ns: _Optional[int] = ..., unix_ns: _Optional[int] = ..., step: _Optional[int] = ..., frontiers: _Optional[_Iterable[_Union[Frontier, _Mapping]]] = ..., dropped: _Optional[int] = ..., control: _Optional[_Union[TraceControl, _Mapping]] = ..., gpu: _Optional[_Union[GpuTelemetry, _Mapping]] = ..., activity: _Optional[str] = ..., activity_since_ns: _Optional[int] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., thread_cpu_ns: _Optional[int] = ..., thread_wait_ns: _Optional[int] = ..., closing: _Optional[bool] = ..., phase: _Optional[_Union[Phase, str]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., operations_lost: _Optional[int] = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., unpassed_mark_ns: _Optional[int] = ...) -> None: ...

class Stack(_message.Message):
    __slots__ = ("clock_ns", "state", "text", "source", "recorder", "ras", "ports")
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RECORDER_FIELD_NUMBER: _ClassVar[int]
    RAS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    clock_ns: int
    state: str
    text: str
    source: str
    recorder: str
    ras: str
    ports: _containers.RepeatedCompositeFieldContainer[PortSends]
    def __init__(self, clock_ns: _Optional[int] = ..., state: _Optional[str] = ..., text: _Optional[str] = ..., source: _Optional[str] = ..., recorder: _Optional[str] = ..., ras: _Optional[str] = ..., ports: _Optional[_Iterable[_Union[PortSends, _Mapping]]] = ...) -> None: ...

class Frontier(_message.Message):
    __slots__ = ("communicator", "enqueued", "started", "completed", "enqueued_at_ns", "completed_at_ns", "operation", "peer", "sending", "open", "elements", "data_type", "root", "nccl", "open_count")
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    OPEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    communicator: int
    enqueued: int
    started: int
    completed: int
    enqueued_at_ns: int
    completed_at_ns: int
    operation: str
    peer: int
    sending: bool
    open: _containers.RepeatedCompositeFieldContainer[OpenMessage]
    elements: int
    data_type: str
    root: int
    nccl: NcclSeat
    open_count: int
    def __init__(self, communicator: _Optional[int] = ..., enqueued: _Optional[int] = ..., started: _Optional[int] = ..., completed: _Optional[int] = ..., enqueued_at_ns: _Optional[int] = ..., completed_at_ns: _Optional[int] = ..., operation: _Optional[str] = ..., peer: _Optional[int] = ..., sending: _Optional[bool] = ..., open: _Optional[_Iterable[_Union[OpenMessage, _Mapping]]] = ..., elements: _Optional[int] = ..., data_type: _Optional[str] = ..., root: _Optional[int] = ..., nccl: _Optional[_Union[NcclSeat, _Mapping]] = ..., open_count: _Optional[int] = ...) -> None: ...

class NcclSeat(_message.Message):
    __slots__ = ("hash", "size", "place", "timed", "peer")
    HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    hash: int
    size: int
    place: int
    timed: bool
    peer: int
    def __init__(self, hash: _Optional[int] = ..., size: _Optional[int] = ..., place: _Optional[int] = ..., timed: _Optional[bool] = ..., peer: _Optional[int] = ...) -> None: ...

class OpenMessage(_message.Message):
    __slots__ = ("step", "message", "posted_at_ns")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    POSTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    step: int
    message: int
    posted_at_ns: int
    def __init__(self, step: _Optional[int] = ..., message: _Optional[int] = ..., posted_at_ns: _Optional[int] = ...) -> None: ...

class GpuTelemetry(_message.Message):
    __slots__ = ("sm_clock_mhz", "sm_clock_max_mhz", "clock_event_reasons", "temperature_celsius", "power_watts", "ecc_volatile_uncorrected", "remapped_rows", "pcie_replays", "utilization_percent", "other_processes")
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MAX_MHZ_FIELD_NUMBER: _ClassVar[int]
    CLOCK_EVENT_REASONS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    ECC_VOLATILE_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    REMAPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    PCIE_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    OTHER_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    sm_clock_mhz: int
    sm_clock_max_mhz: int
    clock_event_reasons: int
    temperature_celsius: int
    power_watts: float
    ecc_volatile_uncorrected: int
    remapped_rows: int
    pcie_replays: int
    utilization_percent: int
    other_processes: int
    def __init__(self, sm_clock_mhz: _Optional[int] = ..., sm_clock_max_mhz: _Optional[int] = ..., clock_event_reasons: _Optional[int] = ..., temperature_celsius: _Optional[int] = ..., power_watts: _Optional[float] = ..., ecc_volatile_uncorrected: _Optional[int] = ..., remapped_rows: _Optional[int] = ..., pcie_replays: _Optional[int] = ..., utilization_percent: _Optional[int] = ..., other_processes: _Optional[int] = ...) -> None: ...

class RankMessage(_message.Message):
    __slots__ = ("identity", "message", "received_unix_ns", "clock_offset_ns", "clock_error_ns", "lost")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    message: TraceMessage
    received_unix_ns: int
    clock_offset_ns: int
    clock_error_ns: int
    lost: bool
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., message: _Optional[_Union[TraceMessage, _Mapping]] = ..., received_unix_ns: _Optional[int] = ..., clock_offset_ns: _Optional[int] = ..., clock_error_ns: _Optional[int] = ..., lost: _Optional[bool] = ...) -> None: ...

class SentMessage(_message.Message):
    __slots__ = ("sender", "message", "received_unix_ns", "clock_offset_ns", "clock_error_ns", "lost")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    sender: bytes
    message: SentTraceMessage
    received_unix_ns: int
    clock_offset_ns: int
    clock_error_ns: int
    lost: bool
    def __init__(self, sender: _Optional[bytes] = ..., message: _Optional[_Union[SentTraceMessage, _Mapping]] = ..., received_unix_ns: _Optional[int] = ..., clock_offset_ns: _Optional[int] = ..., clock_error_ns: _Optional[int] = ..., lost: _Optional[bool] = ...) -> None: ...

class SentTraceMessage(_message.Message):
    __slots__ = ("seq", "hello", "batch", "summary", "heartbeat", "bundle")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hello: Hello
    batch: TraceBatch
    summary: StepSummary
    heartbeat: SentHeartbeat
    bundle: Bundle
    def __init__(self, seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[TraceBatch, _Mapping]] = ..., summary: _Optional[_Union[StepSummary, _Mapping]] = ..., heartbeat: _Optional[_Union[SentHeartbeat, _Mapping]] = ..., bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class SentHeartbeat(_message.Message):
    __slots__ = ("clock_ns", "step", "frontiers", "gpu", "activity", "communicators", "thread_cpu_ns", "thread_wait_ns", "closing", "phase", "stack", "unpassed_mark_ns")
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIERS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    THREAD_CPU_NS_FIELD_NUMBER: _ClassVar[int]
    THREAD_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    UNPASSED_MARK_NS_FIELD_NUMBER: _ClassVar[int]
    clock_ns: int
    step: int
    frontiers: _containers.RepeatedScalarFieldContainer[bytes]
    gpu: GpuTelemetry
    activity: str
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    thread_cpu_ns: int
    thread_wait_ns: int
    closing: bool
    phase: Phase
    stack: Stack
    unpassed_mark_ns: int
    def __init__(self, clock_ns: _Optional[int] = ..., step: _Optional[int] = ..., frontiers: _Optional[_Iterable[bytes]] = ..., gpu: _Optional[_Union[GpuTelemetry, _Mapping]] = ..., activity: _Optional[str] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., thread_cpu_ns: _Optional[int] = ..., thread_wait_ns: _Optional[int] = ..., closing: _Optional[bool] = ..., phase: _Optional[_Union[Phase, str]] = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., unpassed_mark_ns: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobRecord]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobRecord, _Mapping]]] = ...) -> None: ...

class JobRecord(_message.Message):
    __slots__ = ("run", "job", "attempt", "sizes", "schedule", "first_step", "last_step", "first_seen_unix_ns", "last_seen_unix_ns", "ranks_connected", "events", "stored_bytes", "dropped", "evaluations")
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    RANKS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    run: str
    job: str
    attempt: int
    sizes: ParallelSizes
    schedule: Schedule
    first_step: int
    last_step: int
    first_seen_unix_ns: int
    last_seen_unix_ns: int
    ranks_connected: int
    events: int
    stored_bytes: int
    dropped: int
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    def __init__(self, run: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., sizes: _Optional[_Union[ParallelSizes, _Mapping]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., first_seen_unix_ns: _Optional[int] = ..., last_seen_unix_ns: _Optional[int] = ..., ranks_connected: _Optional[int] = ..., events: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., dropped: _Optional[int] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ...) -> None: ...

class ListRanksRequest(_message.Message):
    __slots__ = ("run", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class ListRanksResponse(_message.Message):
    __slots__ = ("ranks", "evaluations", "recipe")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RankRecord]
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    recipe: Recipe
    def __init__(self, ranks: _Optional[_Iterable[_Union[RankRecord, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ...) -> None: ...

class RankRecord(_message.Message):
    __slots__ = ("identity", "placement", "device", "connected", "last_seen_unix_ns", "communicators", "closed", "heartbeat", "heartbeat_unix_ns", "attached")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    placement: Placement
    device: Device
    connected: bool
    last_seen_unix_ns: int
    communicators: _containers.RepeatedCompositeFieldContainer[Communicator]
    closed: bool
    heartbeat: Heartbeat
    heartbeat_unix_ns: int
    attached: Attached
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., device: _Optional[_Union[Device, str]] = ..., connected: _Optional[bool] = ..., last_seen_unix_ns: _Optional[int] = ..., communicators: _Optional[_Iterable[_Union[Communicator, _Mapping]]] = ..., closed: _Optional[bool] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., heartbeat_unix_ns: _Optional[int] = ..., attached: _Optional[_Union[Attached, str]] = ...) -> None: ...

class ListStepsRequest(_message.Message):
    __slots__ = ("run", "attempt", "from_step", "to_step", "limit")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    from_step: int
    to_step: int
    limit: int
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListStepsResponse(_message.Message):
    __slots__ = ("count", "step", "rank", "start_ns", "duration_ns", "compute_ns", "wait_ns", "host_ns", "traced")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_NS_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    count: int
    step: bytes
    rank: bytes
    start_ns: bytes
    duration_ns: bytes
    compute_ns: bytes
    wait_ns: bytes
    host_ns: bytes
    traced: bytes
    def __init__(self, count: _Optional[int] = ..., step: _Optional[bytes] = ..., rank: _Optional[bytes] = ..., start_ns: _Optional[bytes] = ..., duration_ns: _Optional[bytes] = ..., compute_ns: _Optional[bytes] = ..., wait_ns: _Optional[bytes] = ..., host_ns: _Optional[bytes] = ..., traced: _Optional[bytes] = ...) -> None: ...

class ListStepGridRequest(_message.Message):
    __slots__ = ("run", "attempt", "from_step", "to_step", "ranks", "max_buckets", "bucket_steps")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MAX_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_STEPS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    from_step: int
    to_step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    max_buckets: int
    bucket_steps: int
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., max_buckets: _Optional[int] = ..., bucket_steps: _Optional[int] = ...) -> None: ...

class ListStepGridResponse(_message.Message):
    __slots__ = ("oldest_step", "newest_step", "first_step", "bucket_steps", "ranks", "start_ns", "end_ns", "traced", "offset_seconds", "duration_seconds", "shortest_seconds", "longest_seconds", "compute_seconds", "most_compute_seconds", "wait_seconds", "host_seconds")
    OLDEST_STEP_FIELD_NUMBER: _ClassVar[int]
    NEWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_STEPS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHORTEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOST_COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HOST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    oldest_step: int
    newest_step: int
    first_step: int
    bucket_steps: int
    ranks: bytes
    start_ns: bytes
    end_ns: bytes
    traced: bytes
    offset_seconds: bytes
    duration_seconds: bytes
    shortest_seconds: bytes
    longest_seconds: bytes
    compute_seconds: bytes
    most_compute_seconds: bytes
    wait_seconds: bytes
    host_seconds: bytes
    def __init__(self, oldest_step: _Optional[int] = ..., newest_step: _Optional[int] = ..., first_step: _Optional[int] = ..., bucket_steps: _Optional[int] = ..., ranks: _Optional[bytes] = ..., start_ns: _Optional[bytes] = ..., end_ns: _Optional[bytes] = ..., traced: _Optional[bytes] = ..., offset_seconds: _Optional[bytes] = ..., duration_seconds: _Optional[bytes] = ..., shortest_seconds: _Optional[bytes] = ..., longest_seconds: _Optional[bytes] = ..., compute_seconds: _Optional[bytes] = ..., most_compute_seconds: _Optional[bytes] = ..., wait_seconds: _Optional[bytes] = ..., host_seconds: _Optional[bytes] = ...) -> None: ...

class ListClocksRequest(_message.Message):
    __slots__ = ("run", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class ListClocksResponse(_message.Message):
    __slots__ = ("clocks",)
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    clocks: _containers.RepeatedCompositeFieldContainer[ClockRecord]
    def __init__(self, clocks: _Optional[_Iterable[_Union[ClockRecord, _Mapping]]] = ...) -> None: ...

class ClockRecord(_message.Message):
    __slots__ = ("rank", "node", "offset_ns", "drift_ppm", "error_ns", "residual_median_ns", "residual_p90_ns", "raw_residual_median_ns", "fitted", "anchors")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    DRIFT_PPM_FIELD_NUMBER: _ClassVar[int]
    ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_MEDIAN_NS_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_P90_NS_FIELD_NUMBER: _ClassVar[int]
    RAW_RESIDUAL_MEDIAN_NS_FIELD_NUMBER: _ClassVar[int]
    FITTED_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    offset_ns: int
    drift_ppm: float
    error_ns: int
    residual_median_ns: int
    residual_p90_ns: int
    raw_residual_median_ns: int
    fitted: bool
    anchors: int
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., offset_ns: _Optional[int] = ..., drift_ppm: _Optional[float] = ..., error_ns: _Optional[int] = ..., residual_median_ns: _Optional[int] = ..., residual_p90_ns: _Optional[int] = ..., raw_residual_median_ns: _Optional[int] = ..., fitted: _Optional[bool] = ..., anchors: _Optional[int] = ...) -> None: ...

class ReadHistoryRequest(_message.Message):
    __slots__ = ("run", "from_step", "to_step", "from_unix_ns", "to_unix_ns", "bins", "by_time")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    FROM_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    TO_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    BY_TIME_FIELD_NUMBER: _ClassVar[int]
    run: str
    from_step: int
    to_step: int
    from_unix_ns: int
    to_unix_ns: int
    bins: int
    by_time: bool
    def __init__(self, run: _Optional[str] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., from_unix_ns: _Optional[int] = ..., to_unix_ns: _Optional[int] = ..., bins: _Optional[int] = ..., by_time: _Optional[bool] = ...) -> None: ...

class ReadHistoryResponse(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptHistory]
    def __init__(self, attempts: _Optional[_Iterable[_Union[AttemptHistory, _Mapping]]] = ...) -> None: ...

class AttemptHistory(_message.Message):
    __slots__ = ("attempt", "first_seen_unix_ns", "last_seen_unix_ns", "live", "ended_well", "first_step", "evaluations", "count", "bin_first_step", "bin_last_step", "bin_steps", "start_ns", "end_ns", "duration_ns", "stage_wait_ns", "checkpoint_ns", "evaluation_ns", "phases", "series")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ENDED_WELL_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BIN_FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    BIN_LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    BIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    STAGE_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_NS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_NS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    first_seen_unix_ns: int
    last_seen_unix_ns: int
    live: bool
    ended_well: bool
    first_step: int
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    count: int
    bin_first_step: bytes
    bin_last_step: bytes
    bin_steps: bytes
    start_ns: bytes
    end_ns: bytes
    duration_ns: bytes
    stage_wait_ns: bytes
    checkpoint_ns: bytes
    evaluation_ns: bytes
    phases: bytes
    series: _containers.RepeatedCompositeFieldContainer[HistorySeries]
    def __init__(self, attempt: _Optional[int] = ..., first_seen_unix_ns: _Optional[int] = ..., last_seen_unix_ns: _Optional[int] = ..., live: _Optional[bool] = ..., ended_well: _Optional[bool] = ..., first_step: _Optional[int] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., count: _Optional[int] = ..., bin_first_step: _Optional[bytes] = ..., bin_last_step: _Optional[bytes] = ..., bin_steps: _Optional[bytes] = ..., start_ns: _Optional[bytes] = ..., end_ns: _Optional[bytes] = ..., duration_ns: _Optional[bytes] = ..., stage_wait_ns: _Optional[bytes] = ..., checkpoint_ns: _Optional[bytes] = ..., evaluation_ns: _Optional[bytes] = ..., phases: _Optional[bytes] = ..., series: _Optional[_Iterable[_Union[HistorySeries, _Mapping]]] = ...) -> None: ...

class HistorySeries(_message.Message):
    __slots__ = ("name", "min", "max", "mean", "non_finite")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    name: str
    min: bytes
    max: bytes
    mean: bytes
    non_finite: bytes
    def __init__(self, name: _Optional[str] = ..., min: _Optional[bytes] = ..., max: _Optional[bytes] = ..., mean: _Optional[bytes] = ..., non_finite: _Optional[bytes] = ...) -> None: ...

class ReadSpansRequest(_message.Message):
    __slots__ = ("run", "attempt", "from_step", "to_step", "ranks")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    from_step: int
    to_step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class RankSpans(_message.Message):
    __slots__ = ("rank", "batch")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    rank: int
    batch: TraceBatch
    def __init__(self, rank: _Optional[int] = ..., batch: _Optional[_Union[TraceBatch, _Mapping]] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("run", "attempt", "from_step", "to_step", "ranks", "format")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    from_step: int
    to_step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    format: ExportFormat
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., format: _Optional[_Union[ExportFormat, str]] = ...) -> None: ...

class ExportChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
