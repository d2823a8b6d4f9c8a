"""What a plan is made for: a model, a training of it, and the devices and links beside it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.placement import Layout

VALUE_BYTES = 2
"""Of an activation and of a weight on its way: bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes as Megatron's flags name them. qkv_width: of queries, keys and values together; groups: attention
    heads, or groups of them under grouped queries, which tensor ranks share. Raises UsageError."""

    layers: int
    hidden: int
    sequence: int
    batch: int
    ffn: int
    qkv_width: int
    vocabulary: int
    groups: int
    gated: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "sequence", "batch", "ffn", "qkv_width", "vocabulary", "groups"):
            if getattr(self, name) < 1:
                raise UsageError(f"a model's {name} can't be {getattr(self, name)}: give 1 or more")

    @property
    def fc1_width(self) -> int:
        return self.ffn * (2 if self.gated else 1)

    @property
    def layer_parameters(self) -> int:
        """Of the linears; norms and biases are small."""
        return self.hidden * (self.qkv_width + self.hidden + self.fc1_width + self.ffn)

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def border_bytes(self) -> int:
        """Of the activation between two layers, [s, b, h]."""
        return VALUE_BYTES * self.sequence * self.batch * self.hidden

    def linears_bytes(self, tensor: int) -> float:
        """Of the outputs of a layer's linears on one tensor rank: those of column-parallel ones are split, those of
        row-parallel ones are whole, as they are summed over the ranks afterwards."""
        width = (self.qkv_width + self.fc1_width) / tensor + 2 * self.hidden
        return VALUE_BYTES * self.sequence * self.batch * width

    def activation_bytes(self, tensor: int) -> float:
        """Of a layer on one tensor rank without recompute: sbh(10 + 24/t), arXiv 2205.05198, with flash attention."""
        return self.sequence * self.batch * self.hidden * (10 + 24 / tensor)

    @property
    def linears_share(self) -> float:
        """Of a layer's forward FLOPs, with causal attention."""
        return self.layer_parameters / (self.layer_parameters + self.sequence * self.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training that forward devices are added to. Times are of one microbatch on one stage, all its chunks.

    message_ns: between neighbouring stages. tail_ns: gradient sync and optimizer, the same with and without MegaFBD.
    parameter_bytes: of weight, gradient and optimizer's state. memory_bytes: of a device. Raises UsageError.
    """

    layout: Layout
    tensor: int
    replicas: int
    forward_ns: float
    dgrad_ns: float
    wgrad_ns: float
    memory_bytes: float
    message_ns: float = 0.0
    tail_ns: float = 0.0
    parameter_bytes: float = 18.0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        times = (self.forward_ns, self.dgrad_ns, self.wgrad_ns)
        if not all(isfinite(each) and each > 0 for each in times):
            raise UsageError("forward, dgrad and wgrad times must be positive numbers")
        if min(self.tensor, self.replicas) < 1:
            raise UsageError("a training has at least one tensor rank and one replica")
        if not self.memory_bytes > 0 or not 2 <= self.parameter_bytes < inf:
            raise UsageError("a device's memory is positive, and a trained parameter takes 2 bytes or more")

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.layout.stages * self.tensor

    def pass_ns(self, *, recomputes: bool) -> float:
        return self.forward_ns * (1 + recomputes) + self.dgrad_ns + self.wgrad_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardDevices:
    """So many for each replica. speed: 1 is a training device's. bytes_per_second: of a device's link to the training
    devices, each way. Raises UsageError."""

    count: int
    speed: float
    memory_bytes: float
    bytes_per_second: float
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"{self.count} forward devices run nothing: give 1 or more for each replica")
        if not 0 < self.speed < 1000:
            raise UsageError("a forward device's speed is a share of a training device's, such as 0.4")
        if not self.memory_bytes > 0 or not self.bytes_per_second > 0 or not 0 <= self.latency_ns < inf:
            raise UsageError("a forward device's memory and link are positive, its latency is 0 or a positive number")
