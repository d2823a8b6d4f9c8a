"""The names of spans, their kinds, and which of them are passes, sends and receives: one table for who writes and who
reads them. docs/spans.md explains each; tests hold it, and the recorder's own numbers, to this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from megatronapp.core.trace.message_id import Direction
from megatronapp.core.trace.values import SpanKind


class SpanName(StrEnum):
    STEP = "step"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    WGRAD = "wgrad"
    FORWARD_SEND = "forward_send"
    FORWARD_RECV = "forward_recv"
    BACKWARD_SEND = "backward_send"
    BACKWARD_RECV = "backward_recv"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    GRAD_SYNC = "grad_sync"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_WRITE = "checkpoint_write"
    EVALUATE = "evaluate"
    GC = "gc"
    PROCESSOR_PROBE = "processor_probe"
    DECIDE = "decide"
    IN_FLIGHT = "in_flight"
    WAIT_INPUT = "wait_input"
    WAIT_LINEARS = "wait_linears"
    WAIT_WEIGHTS = "wait_weights"
    WAIT_SLOT = "wait_slot"
    # Granularity full only, and never in a summary.
    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    NORM = "norm"
    QKV = "qkv"
    CORE_ATTENTION = "core_attention"
    ATTENTION_PROJECTION = "attention_projection"
    MLP_FC1 = "mlp_fc1"
    MLP_ACTIVATION = "mlp_activation"
    MLP_FC2 = "mlp_fc2"
    EMBEDDING = "embedding"
    OUTPUT_LAYER = "output_layer"
    ROUTER = "router"
    EXPERTS = "experts"
    # Only where NCCL itself tells of what no hook has seen, and never in a summary.
    SEND = "send"
    RECV = "recv"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"


PASSES = (SpanName.FORWARD, SpanName.BACKWARD)
"""One microbatch on one model chunk."""
STEP_COMPUTE = (*PASSES, SpanName.WGRAD, SpanName.OPTIMIZER)
"""What a step computes; finer spans lie within."""
CHECKPOINTS = (SpanName.CHECKPOINT, SpanName.CHECKPOINT_WRITE)

SENDS: Mapping[str, Direction] = MappingProxyType(
    {SpanName.FORWARD_SEND: Direction.FORWARD, SpanName.BACKWARD_SEND: Direction.BACKWARD}
)
RECEIVES: Mapping[str, Direction] = MappingProxyType(
    {SpanName.FORWARD_RECV: Direction.FORWARD, SpanName.BACKWARD_RECV: Direction.BACKWARD}
)
"""Name → direction of the message."""

SYMMETRIC = frozenset({SpanName.ALL_REDUCE, SpanName.ALL_GATHER, SpanName.REDUCE_SCATTER, SpanName.BARRIER})
"""Collectives no member of which can end before every member has begun."""
COLLECTIVES = SYMMETRIC | {SpanName.BROADCAST, SpanName.ALL_TO_ALL}

WAITS = frozenset({SpanName.WAIT_INPUT, SpanName.WAIT_LINEARS, SpanName.WAIT_WEIGHTS, SpanName.WAIT_SLOT})
"""Of MegaFBD's ranks for those of the other role."""

_MEGADPP = frozenset({SpanName.DECIDE, SpanName.IN_FLIGHT})
_HOST = WAITS | _MEGADPP | {SpanName.DATA, SpanName.GC, SpanName.PROCESSOR_PROBE, *CHECKPOINTS}
_PHASES = frozenset({SpanName.STEP, SpanName.GRAD_SYNC, SpanName.EVALUATE})


_NCCL_MESSAGES = frozenset({SpanName.SEND, SpanName.RECV})
_NCCL_COLLECTIVES = frozenset({SpanName.REDUCE, SpanName.GATHER, SpanName.SCATTER})


def kind_of(name: SpanName) -> SpanKind:
    if name in SENDS or name in RECEIVES or name in _NCCL_MESSAGES:
        return SpanKind.P2P
    if name in COLLECTIVES | _NCCL_COLLECTIVES:
        return SpanKind.COLLECTIVE
    if name in _HOST:
        return SpanKind.HOST
    return SpanKind.PHASE if name in _PHASES else SpanKind.COMPUTE


IN_PASSES = frozenset(name for name in SpanName if kind_of(name) is SpanKind.COMPUTE) - {SpanName.OPTIMIZER}
"""Passes, and what is computed in them at granularity full."""


def message_span(direction: Direction, *, sending: bool) -> SpanName:
    """The name of a message's span at its sender, or at its receiver."""
    names = SENDS if sending else RECEIVES
    return next(SpanName(name) for name, of in names.items() if of is direction)
