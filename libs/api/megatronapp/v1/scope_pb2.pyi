from megatronapp.v1 import trace_pb2 as _trace_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScopeRelayUp(_message.Message):
    __slots__ = ("viewer", "text")
    VIEWER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    viewer: ScopeRelayViewer
    text: str
    def __init__(self, viewer: _Optional[_Union[ScopeRelayViewer, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class ScopeRelayViewer(_message.Message):
    __slots__ = ("role", "name", "expires_unix_seconds")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    role: str
    name: str
    expires_unix_seconds: float
    def __init__(self, role: _Optional[str] = ..., name: _Optional[str] = ..., expires_unix_seconds: _Optional[float] = ...) -> None: ...

class ScopeRelayDown(_message.Message):
    __slots__ = ("text", "frame", "close")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    text: str
    frame: bytes
    close: ScopeRelayClose
    def __init__(self, text: _Optional[str] = ..., frame: _Optional[bytes] = ..., close: _Optional[_Union[ScopeRelayClose, _Mapping]] = ...) -> None: ...

class ScopeRelayClose(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ScopeUp(_message.Message):
    __slots__ = ("hello", "sites", "frame", "event", "ack", "in_force", "event_number")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    hello: ScopeHello
    sites: ScopeSites
    frame: ScopeFrame
    event: ScopeEvent
    ack: ScopeAck
    in_force: ScopeInForce
    event_number: int
    def __init__(self, hello: _Optional[_Union[ScopeHello, _Mapping]] = ..., sites: _Optional[_Union[ScopeSites, _Mapping]] = ..., frame: _Optional[_Union[ScopeFrame, _Mapping]] = ..., event: _Optional[_Union[ScopeEvent, _Mapping]] = ..., ack: _Optional[_Union[ScopeAck, _Mapping]] = ..., in_force: _Optional[_Union[ScopeInForce, _Mapping]] = ..., event_number: _Optional[int] = ...) -> None: ...

class ScopeDown(_message.Message):
    __slots__ = ("accepted", "demand", "command")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    accepted: ScopeAccepted
    demand: ScopeDemand
    command: ScopeCommand
    def __init__(self, accepted: _Optional[_Union[ScopeAccepted, _Mapping]] = ..., demand: _Optional[_Union[ScopeDemand, _Mapping]] = ..., command: _Optional[_Union[ScopeCommand, _Mapping]] = ...) -> None: ...

class ScopeHello(_message.Message):
    __slots__ = ("identity", "placement", "roles", "model", "sites", "state", "confirms_demands")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONFIRMS_DEMANDS_FIELD_NUMBER: _ClassVar[int]
    identity: _trace_pb2.Identity
    placement: _trace_pb2.Placement
    roles: _containers.RepeatedScalarFieldContainer[str]
    model: ScopeModel
    sites: _containers.RepeatedCompositeFieldContainer[ScopeSite]
    state: ScopeState
    confirms_demands: bool
    def __init__(self, identity: _Optional[_Union[_trace_pb2.Identity, _Mapping]] = ..., placement: _Optional[_Union[_trace_pb2.Placement, _Mapping]] = ..., roles: _Optional[_Iterable[str]] = ..., model: _Optional[_Union[ScopeModel, _Mapping]] = ..., sites: _Optional[_Iterable[_Union[ScopeSite, _Mapping]]] = ..., state: _Optional[_Union[ScopeState, _Mapping]] = ..., confirms_demands: _Optional[bool] = ...) -> None: ...

class ScopeModel(_message.Message):
    __slots__ = ("name", "layers", "hidden", "heads", "query_groups", "head_channels", "mlp_channels", "experts", "vocabulary", "padded_vocabulary", "sequence_length", "micro_batch_size", "dtype", "sequence_parallel", "microbatches", "position_embedding", "normalization", "norm_epsilon")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    QUERY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    HEAD_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    MLP_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    PADDED_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    POSITION_EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    NORM_EPSILON_FIELD_NUMBER: _ClassVar[int]
    name: str
    layers: int
    hidden: int
    heads: int
    query_groups: int
    head_channels: int
    mlp_channels: int
    experts: int
    vocabulary: int
    padded_vocabulary: int
    sequence_length: int
    micro_batch_size: int
    dtype: str
    sequence_parallel: bool
    microbatches: int
    position_embedding: str
    normalization: str
    norm_epsilon: float
    def __init__(self, name: _Optional[str] = ..., layers: _Optional[int] = ..., hidden: _Optional[int] = ..., heads: _Optional[int] = ..., query_groups: _Optional[int] = ..., head_channels: _Optional[int] = ..., mlp_channels: _Optional[int] = ..., experts: _Optional[int] = ..., vocabulary: _Optional[int] = ..., padded_vocabulary: _Optional[int] = ..., sequence_length: _Optional[int] = ..., micro_batch_size: _Optional[int] = ..., dtype: _Optional[str] = ..., sequence_parallel: _Optional[bool] = ..., microbatches: _Optional[int] = ..., position_embedding: _Optional[str] = ..., normalization: _Optional[str] = ..., norm_epsilon: _Optional[float] = ...) -> None: ...

class ScopeSites(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[ScopeSite]
    def __init__(self, sites: _Optional[_Iterable[_Union[ScopeSite, _Mapping]]] = ...) -> None: ...

class ScopeSite(_message.Message):
    __slots__ = ("name", "layers", "axes", "dtype", "passes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    layers: _containers.RepeatedScalarFieldContainer[int]
    axes: _containers.RepeatedCompositeFieldContainer[ScopeAxis]
    dtype: str
    passes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., layers: _Optional[_Iterable[int]] = ..., axes: _Optional[_Iterable[_Union[ScopeAxis, _Mapping]]] = ..., dtype: _Optional[str] = ..., passes: _Optional[_Iterable[str]] = ...) -> None: ...

class ScopeAxis(_message.Message):
    __slots__ = ("name", "size", "splits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    splits: _containers.RepeatedCompositeFieldContainer[ScopeSplit]
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., splits: _Optional[_Iterable[_Union[ScopeSplit, _Mapping]]] = ...) -> None: ...

class ScopeSplit(_message.Message):
    __slots__ = ("rule", "part", "parts")
    RULE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    part: int
    parts: int
    def __init__(self, rule: _Optional[str] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class ScopeFrame(_message.Message):
    __slots__ = ("tap", "frame")
    TAP_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    tap: int
    frame: bytes
    def __init__(self, tap: _Optional[int] = ..., frame: _Optional[bytes] = ...) -> None: ...

class ScopeAccepted(_message.Message):
    __slots__ = ("max_frame_bytes", "unix_ns", "received_events")
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    max_frame_bytes: int
    unix_ns: int
    received_events: int
    def __init__(self, max_frame_bytes: _Optional[int] = ..., unix_ns: _Optional[int] = ..., received_events: _Optional[int] = ...) -> None: ...

class ScopeDemand(_message.Message):
    __slots__ = ("revision", "taps", "max_overhead_ratio")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    MAX_OVERHEAD_RATIO_FIELD_NUMBER: _ClassVar[int]
    revision: int
    taps: _containers.RepeatedCompositeFieldContainer[ScopeTap]
    max_overhead_ratio: float
    def __init__(self, revision: _Optional[int] = ..., taps: _Optional[_Iterable[_Union[ScopeTap, _Mapping]]] = ..., max_overhead_ratio: _Optional[float] = ...) -> None: ...

class ScopeTap(_message.Message):
    __slots__ = ("id", "expression", "partial", "max_fps", "quantizer", "every_steps", "when", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    MAX_FPS_FIELD_NUMBER: _ClassVar[int]
    QUANTIZER_FIELD_NUMBER: _ClassVar[int]
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    expression: str
    partial: bool
    max_fps: float
    quantizer: str
    every_steps: int
    when: str
    request: str
    def __init__(self, id: _Optional[int] = ..., expression: _Optional[str] = ..., partial: _Optional[bool] = ..., max_fps: _Optional[float] = ..., quantizer: _Optional[str] = ..., every_steps: _Optional[int] = ..., when: _Optional[str] = ..., request: _Optional[str] = ...) -> None: ...

class ScopeInForce(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class ScopeCommand(_message.Message):
    __slots__ = ("id", "by", "reason", "generation", "train", "perturb", "perturb_clear", "compare", "record")
    ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    PERTURB_FIELD_NUMBER: _ClassVar[int]
    PERTURB_CLEAR_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    id: str
    by: str
    reason: str
    generation: ScopeGeneration
    train: ScopeTrainControl
    perturb: ScopePerturb
    perturb_clear: ScopePerturbClear
    compare: ScopeCompare
    record: ScopeRecord
    def __init__(self, id: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., generation: _Optional[_Union[ScopeGeneration, _Mapping]] = ..., train: _Optional[_Union[ScopeTrainControl, _Mapping]] = ..., perturb: _Optional[_Union[ScopePerturb, _Mapping]] = ..., perturb_clear: _Optional[_Union[ScopePerturbClear, _Mapping]] = ..., compare: _Optional[_Union[ScopeCompare, _Mapping]] = ..., record: _Optional[_Union[ScopeRecord, _Mapping]] = ...) -> None: ...

class ScopeAck(_message.Message):
    __slots__ = ("command", "code", "hint", "effective_step")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_STEP_FIELD_NUMBER: _ClassVar[int]
    command: str
    code: str
    hint: str
    effective_step: int
    def __init__(self, command: _Optional[str] = ..., code: _Optional[str] = ..., hint: _Optional[str] = ..., effective_step: _Optional[int] = ...) -> None: ...

class ScopeGeneration(_message.Message):
    __slots__ = ("command",)
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    command: str
    def __init__(self, command: _Optional[str] = ...) -> None: ...

class ScopeTrainControl(_message.Message):
    __slots__ = ("do", "steps", "until_step", "lease_seconds")
    DO_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    do: str
    steps: int
    until_step: int
    lease_seconds: float
    def __init__(self, do: _Optional[str] = ..., steps: _Optional[int] = ..., until_step: _Optional[int] = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class ScopePerturb(_message.Message):
    __slots__ = ("plan", "perturbations", "seed", "replica", "request")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PERTURBATIONS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    plan: str
    perturbations: _containers.RepeatedCompositeFieldContainer[ScopePerturbation]
    seed: int
    replica: int
    request: str
    def __init__(self, plan: _Optional[str] = ..., perturbations: _Optional[_Iterable[_Union[ScopePerturbation, _Mapping]]] = ..., seed: _Optional[int] = ..., replica: _Optional[int] = ..., request: _Optional[str] = ...) -> None: ...

class ScopePerturbation(_message.Message):
    __slots__ = ("place", "site", "kind", "coefficient", "layers", "heads", "tokens", "channels", "steps", "bits", "with_heads", "redraw", "off", "source", "keep_in_checkpoints", "rows", "baseline", "vector", "source_tokens")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    WITH_HEADS_FIELD_NUMBER: _ClassVar[int]
    REDRAW_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KEEP_IN_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    place: str
    site: str
    kind: str
    coefficient: float
    layers: str
    heads: str
    tokens: str
    channels: str
    steps: str
    bits: str
    with_heads: str
    redraw: bool
    off: bool
    source: str
    keep_in_checkpoints: bool
    rows: str
    baseline: str
    vector: _containers.RepeatedScalarFieldContainer[float]
    source_tokens: str
    def __init__(self, place: _Optional[str] = ..., site: _Optional[str] = ..., kind: _Optional[str] = ..., coefficient: _Optional[float] = ..., layers: _Optional[str] = ..., heads: _Optional[str] = ..., tokens: _Optional[str] = ..., channels: _Optional[str] = ..., steps: _Optional[str] = ..., bits: _Optional[str] = ..., with_heads: _Optional[str] = ..., redraw: _Optional[bool] = ..., off: _Optional[bool] = ..., source: _Optional[str] = ..., keep_in_checkpoints: _Optional[bool] = ..., rows: _Optional[str] = ..., baseline: _Optional[str] = ..., vector: _Optional[_Iterable[float]] = ..., source_tokens: _Optional[str] = ...) -> None: ...

class ScopePerturbClear(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    def __init__(self, plan: _Optional[str] = ...) -> None: ...

class ScopeCompare(_message.Message):
    __slots__ = ("request", "generation", "plan", "align", "coefficients", "seeds")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    request: str
    generation: str
    plan: ScopePerturb
    align: str
    coefficients: _containers.RepeatedScalarFieldContainer[float]
    seeds: int
    def __init__(self, request: _Optional[str] = ..., generation: _Optional[str] = ..., plan: _Optional[_Union[ScopePerturb, _Mapping]] = ..., align: _Optional[str] = ..., coefficients: _Optional[_Iterable[float]] = ..., seeds: _Optional[int] = ...) -> None: ...

class ScopeRecord(_message.Message):
    __slots__ = ("do", "name", "expressions", "view")
    DO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    do: str
    name: str
    expressions: _containers.RepeatedScalarFieldContainer[str]
    view: str
    def __init__(self, do: _Optional[str] = ..., name: _Optional[str] = ..., expressions: _Optional[_Iterable[str]] = ..., view: _Optional[str] = ...) -> None: ...

class ScopeEvent(_message.Message):
    __slots__ = ("unix_ns", "generation", "state", "alert", "series", "perturb", "perturb_clear", "presence", "audit", "comparison")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    PERTURB_FIELD_NUMBER: _ClassVar[int]
    PERTURB_CLEAR_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    generation: ScopeGenerationEvent
    state: ScopeState
    alert: ScopeAlert
    series: ScopeSeries
    perturb: ScopePerturb
    perturb_clear: ScopePerturbClear
    presence: ScopePresence
    audit: ScopeAudit
    comparison: ScopeComparison
    def __init__(self, unix_ns: _Optional[int] = ..., generation: _Optional[_Union[ScopeGenerationEvent, _Mapping]] = ..., state: _Optional[_Union[ScopeState, _Mapping]] = ..., alert: _Optional[_Union[ScopeAlert, _Mapping]] = ..., series: _Optional[_Union[ScopeSeries, _Mapping]] = ..., perturb: _Optional[_Union[ScopePerturb, _Mapping]] = ..., perturb_clear: _Optional[_Union[ScopePerturbClear, _Mapping]] = ..., presence: _Optional[_Union[ScopePresence, _Mapping]] = ..., audit: _Optional[_Union[ScopeAudit, _Mapping]] = ..., comparison: _Optional[_Union[ScopeComparison, _Mapping]] = ...) -> None: ...

class ScopeGenerationEvent(_message.Message):
    __slots__ = ("event", "request")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    event: str
    request: str
    def __init__(self, event: _Optional[str] = ..., request: _Optional[str] = ...) -> None: ...

class ScopeState(_message.Message):
    __slots__ = ("state", "step", "total_steps", "overhead_ratio", "dropped_frames", "lease_seconds", "plan")
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_RATIO_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FRAMES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    state: str
    step: int
    total_steps: int
    overhead_ratio: float
    dropped_frames: int
    lease_seconds: float
    plan: str
    def __init__(self, state: _Optional[str] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., overhead_ratio: _Optional[float] = ..., dropped_frames: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., plan: _Optional[str] = ...) -> None: ...

class ScopeAlert(_message.Message):
    __slots__ = ("kind", "site", "layer", "step", "microbatch", "tap", "detail", "rank")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    TAP_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    kind: str
    site: str
    layer: int
    step: int
    microbatch: int
    tap: int
    detail: str
    rank: int
    def __init__(self, kind: _Optional[str] = ..., site: _Optional[str] = ..., layer: _Optional[int] = ..., step: _Optional[int] = ..., microbatch: _Optional[int] = ..., tap: _Optional[int] = ..., detail: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class ScopeSeries(_message.Message):
    __slots__ = ("name", "step", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    step: int
    value: float
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class ScopeComparison(_message.Message):
    __slots__ = ("request", "first_different_position", "edit_distance", "kl", "log_probability_difference", "coefficient", "seed")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIFFERENT_POSITION_FIELD_NUMBER: _ClassVar[int]
    EDIT_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    KL_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITY_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    request: str
    first_different_position: int
    edit_distance: int
    kl: _containers.RepeatedScalarFieldContainer[float]
    log_probability_difference: _containers.RepeatedScalarFieldContainer[float]
    coefficient: float
    seed: int
    def __init__(self, request: _Optional[str] = ..., first_different_position: _Optional[int] = ..., edit_distance: _Optional[int] = ..., kl: _Optional[_Iterable[float]] = ..., log_probability_difference: _Optional[_Iterable[float]] = ..., coefficient: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class ScopePresence(_message.Message):
    __slots__ = ("viewer", "what", "viewers", "role")
    VIEWER_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    VIEWERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    viewer: str
    what: str
    viewers: int
    role: str
    def __init__(self, viewer: _Optional[str] = ..., what: _Optional[str] = ..., viewers: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class ScopeAudit(_message.Message):
    __slots__ = ("unix_ns", "by", "action", "detail", "reason", "outcome", "command")
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    unix_ns: int
    by: str
    action: str
    detail: str
    reason: str
    outcome: str
    command: str
    def __init__(self, unix_ns: _Optional[int] = ..., by: _Optional[str] = ..., action: _Optional[str] = ..., detail: _Optional[str] = ..., reason: _Optional[str] = ..., outcome: _Optional[str] = ..., command: _Optional[str] = ...) -> None: ...

class ScopeClientMessage(_message.Message):
    __slots__ = ("join", "subscribe", "unsubscribe", "credit", "command", "control", "ping", "snapshot", "replay")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    join: ScopeJoin
    subscribe: ScopeSubscribe
    unsubscribe: ScopeUnsubscribe
    credit: ScopeCredit
    command: ScopeCommand
    control: ScopeControl
    ping: ScopePing
    snapshot: ScopeSnapshot
    replay: ScopeReplayControl
    def __init__(self, join: _Optional[_Union[ScopeJoin, _Mapping]] = ..., subscribe: _Optional[_Union[ScopeSubscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[ScopeUnsubscribe, _Mapping]] = ..., credit: _Optional[_Union[ScopeCredit, _Mapping]] = ..., command: _Optional[_Union[ScopeCommand, _Mapping]] = ..., control: _Optional[_Union[ScopeControl, _Mapping]] = ..., ping: _Optional[_Union[ScopePing, _Mapping]] = ..., snapshot: _Optional[_Union[ScopeSnapshot, _Mapping]] = ..., replay: _Optional[_Union[ScopeReplayControl, _Mapping]] = ...) -> None: ...

class ScopeServerMessage(_message.Message):
    __slots__ = ("welcome", "description", "subscribed", "refused", "event", "resumed", "gap", "stall", "result", "pong", "go_away", "snapshot", "recording", "replay")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    welcome: ScopeWelcome
    description: ScopeDescription
    subscribed: ScopeSubscribed
    refused: ScopeRefused
    event: ScopeNumberedEvent
    resumed: ScopeResumed
    gap: ScopeGap
    stall: ScopeStall
    result: ScopeResult
    pong: ScopePong
    go_away: ScopeGoAway
    snapshot: ScopeSnapshotTaken
    recording: ScopeRecording
    replay: ScopeReplayState
    def __init__(self, welcome: _Optional[_Union[ScopeWelcome, _Mapping]] = ..., description: _Optional[_Union[ScopeDescription, _Mapping]] = ..., subscribed: _Optional[_Union[ScopeSubscribed, _Mapping]] = ..., refused: _Optional[_Union[ScopeRefused, _Mapping]] = ..., event: _Optional[_Union[ScopeNumberedEvent, _Mapping]] = ..., resumed: _Optional[_Union[ScopeResumed, _Mapping]] = ..., gap: _Optional[_Union[ScopeGap, _Mapping]] = ..., stall: _Optional[_Union[ScopeStall, _Mapping]] = ..., result: _Optional[_Union[ScopeResult, _Mapping]] = ..., pong: _Optional[_Union[ScopePong, _Mapping]] = ..., go_away: _Optional[_Union[ScopeGoAway, _Mapping]] = ..., snapshot: _Optional[_Union[ScopeSnapshotTaken, _Mapping]] = ..., recording: _Optional[_Union[ScopeRecording, _Mapping]] = ..., replay: _Optional[_Union[ScopeReplayState, _Mapping]] = ...) -> None: ...

class ScopeJoin(_message.Message):
    __slots__ = ("client", "run", "recording", "resume")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    client: str
    run: str
    recording: str
    resume: ScopeResume
    def __init__(self, client: _Optional[str] = ..., run: _Optional[str] = ..., recording: _Optional[str] = ..., resume: _Optional[_Union[ScopeResume, _Mapping]] = ...) -> None: ...

class ScopeResume(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    offset: int
    def __init__(self, epoch: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ScopeSubscribe(_message.Message):
    __slots__ = ("id", "expression", "max_fps", "width", "height", "quantizer", "codec", "credits", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    MAX_FPS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    QUANTIZER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    expression: str
    max_fps: float
    width: int
    height: int
    quantizer: str
    codec: str
    credits: int
    request: str
    def __init__(self, id: _Optional[int] = ..., expression: _Optional[str] = ..., max_fps: _Optional[float] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., quantizer: _Optional[str] = ..., codec: _Optional[str] = ..., credits: _Optional[int] = ..., request: _Optional[str] = ...) -> None: ...

class ScopeUnsubscribe(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ScopeCredit(_message.Message):
    __slots__ = ("id", "frames")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    id: int
    frames: int
    def __init__(self, id: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class ScopeControl(_message.Message):
    __slots__ = ("do",)
    DO_FIELD_NUMBER: _ClassVar[int]
    do: str
    def __init__(self, do: _Optional[str] = ...) -> None: ...

class ScopePing(_message.Message):
    __slots__ = ("time",)
    TIME_FIELD_NUMBER: _ClassVar[int]
    time: float
    def __init__(self, time: _Optional[float] = ...) -> None: ...

class ScopeSnapshot(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: str
    def __init__(self, view: _Optional[str] = ...) -> None: ...

class ScopeWelcome(_message.Message):
    __slots__ = ("viewer", "epoch", "offset", "server_unix_seconds", "role", "limits")
    VIEWER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SERVER_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    viewer: str
    epoch: str
    offset: int
    server_unix_seconds: float
    role: str
    limits: ScopeLimits
    def __init__(self, viewer: _Optional[str] = ..., epoch: _Optional[str] = ..., offset: _Optional[int] = ..., server_unix_seconds: _Optional[float] = ..., role: _Optional[str] = ..., limits: _Optional[_Union[ScopeLimits, _Mapping]] = ...) -> None: ...

class ScopeLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_frame_bytes", "max_subscriptions", "max_fps", "max_messages_per_second", "max_expression_characters", "max_operations")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_FPS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPRESSION_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_frame_bytes: int
    max_subscriptions: int
    max_fps: float
    max_messages_per_second: float
    max_expression_characters: int
    max_operations: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., max_subscriptions: _Optional[int] = ..., max_fps: _Optional[float] = ..., max_messages_per_second: _Optional[float] = ..., max_expression_characters: _Optional[int] = ..., max_operations: _Optional[int] = ...) -> None: ...

class ScopeDescription(_message.Message):
    __slots__ = ("run", "job", "attempt", "model", "sizes", "sites", "roles", "ranks", "missing_ranks", "state", "replay", "controller")
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MISSING_RANKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    run: str
    job: str
    attempt: int
    model: ScopeModel
    sizes: _trace_pb2.ParallelSizes
    sites: _containers.RepeatedCompositeFieldContainer[ScopeSite]
    roles: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    missing_ranks: _containers.RepeatedScalarFieldContainer[int]
    state: ScopeState
    replay: bool
    controller: str
    def __init__(self, run: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., model: _Optional[_Union[ScopeModel, _Mapping]] = ..., sizes: _Optional[_Union[_trace_pb2.ParallelSizes, _Mapping]] = ..., sites: _Optional[_Iterable[_Union[ScopeSite, _Mapping]]] = ..., roles: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[int]] = ..., missing_ranks: _Optional[_Iterable[int]] = ..., state: _Optional[_Union[ScopeState, _Mapping]] = ..., replay: _Optional[bool] = ..., controller: _Optional[str] = ...) -> None: ...

class ScopeSubscribed(_message.Message):
    __slots__ = ("id", "expression", "shape", "axes", "kind", "quantizer", "frame_bytes", "cost_microseconds", "frames_per_step", "statistics")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUANTIZER_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    COST_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    id: int
    expression: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    axes: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    quantizer: str
    frame_bytes: int
    cost_microseconds: float
    frames_per_step: int
    statistics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., expression: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., axes: _Optional[_Iterable[str]] = ..., kind: _Optional[str] = ..., quantizer: _Optional[str] = ..., frame_bytes: _Optional[int] = ..., cost_microseconds: _Optional[float] = ..., frames_per_step: _Optional[int] = ..., statistics: _Optional[_Iterable[str]] = ...) -> None: ...

class ScopeRefused(_message.Message):
    __slots__ = ("id", "command", "code", "position", "message", "hint")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    id: int
    command: str
    code: str
    position: int
    message: str
    hint: str
    def __init__(self, id: _Optional[int] = ..., command: _Optional[str] = ..., code: _Optional[str] = ..., position: _Optional[int] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class ScopeNumberedEvent(_message.Message):
    __slots__ = ("offset", "event", "rank", "event_number", "incarnation")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    offset: int
    event: ScopeEvent
    rank: int
    event_number: int
    incarnation: int
    def __init__(self, offset: _Optional[int] = ..., event: _Optional[_Union[ScopeEvent, _Mapping]] = ..., rank: _Optional[int] = ..., event_number: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ScopeResumed(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ScopeGap(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ScopeStall(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: int
    reason: str
    def __init__(self, id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ScopeResult(_message.Message):
    __slots__ = ("command", "ack", "ranks", "answered")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    command: str
    ack: ScopeAck
    ranks: int
    answered: int
    def __init__(self, command: _Optional[str] = ..., ack: _Optional[_Union[ScopeAck, _Mapping]] = ..., ranks: _Optional[int] = ..., answered: _Optional[int] = ...) -> None: ...

class ScopePong(_message.Message):
    __slots__ = ("time", "server_unix_seconds")
    TIME_FIELD_NUMBER: _ClassVar[int]
    SERVER_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    time: float
    server_unix_seconds: float
    def __init__(self, time: _Optional[float] = ..., server_unix_seconds: _Optional[float] = ...) -> None: ...

class ScopeGoAway(_message.Message):
    __slots__ = ("retry_milliseconds",)
    RETRY_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    retry_milliseconds: int
    def __init__(self, retry_milliseconds: _Optional[int] = ...) -> None: ...

class ScopeSnapshotTaken(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ScopeRecording(_message.Message):
    __slots__ = ("id", "command", "state", "bytes", "seconds", "limit")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    command: str
    state: str
    bytes: int
    seconds: float
    limit: str
    def __init__(self, id: _Optional[str] = ..., command: _Optional[str] = ..., state: _Optional[str] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., limit: _Optional[str] = ...) -> None: ...

class ScopeReplayControl(_message.Message):
    __slots__ = ("do", "seconds", "speed")
    DO_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    do: str
    seconds: float
    speed: float
    def __init__(self, do: _Optional[str] = ..., seconds: _Optional[float] = ..., speed: _Optional[float] = ...) -> None: ...

class ScopeReplayState(_message.Message):
    __slots__ = ("seconds", "duration_seconds", "playing", "speed", "subscriptions", "name", "recorded_unix_seconds")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLAYING_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDED_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    duration_seconds: float
    playing: bool
    speed: float
    subscriptions: _containers.RepeatedCompositeFieldContainer[ScopeSubscribe]
    name: str
    recorded_unix_seconds: float
    def __init__(self, seconds: _Optional[float] = ..., duration_seconds: _Optional[float] = ..., playing: _Optional[bool] = ..., speed: _Optional[float] = ..., subscriptions: _Optional[_Iterable[_Union[ScopeSubscribe, _Mapping]]] = ..., name: _Optional[str] = ..., recorded_unix_seconds: _Optional[float] = ...) -> None: ...
