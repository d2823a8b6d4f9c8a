"""The names of spans (docs/spans.md), their numbers in the recorder, and what kind of time each one takes."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any

from megatronapp.core.trace.values import SpanKind


class Operation(IntEnum):
    """Index into a batch's table of names: every batch of this plug-in carries all of them."""

    STEP = 0
    DATA = auto()
    FORWARD = auto()
    BACKWARD = auto()
    WGRAD = auto()
    FORWARD_SEND = auto()
    FORWARD_RECV = auto()
    BACKWARD_SEND = auto()
    BACKWARD_RECV = auto()
    ALL_REDUCE = auto()
    ALL_GATHER = auto()
    REDUCE_SCATTER = auto()
    BROADCAST = auto()
    ALL_TO_ALL = auto()
    BARRIER = auto()
    GRAD_SYNC = auto()
    OPTIMIZER = auto()
    CHECKPOINT = auto()
    CHECKPOINT_WRITE = auto()
    EVALUATE = auto()
    GC = auto()
    PROCESSOR_PROBE = auto()
    DECIDE = auto()
    IN_FLIGHT = auto()
    WAIT_INPUT = auto()
    WAIT_LINEARS = auto()
    WAIT_WEIGHTS = auto()
    WAIT_SLOT = auto()
    # From here on granularity full only, and never in a summary.
    LAYER_FORWARD = auto()
    LAYER_BACKWARD = auto()
    NORM = auto()
    QKV = auto()
    CORE_ATTENTION = auto()
    ATTENTION_PROJECTION = auto()
    MLP_FC1 = auto()
    MLP_ACTIVATION = auto()
    MLP_FC2 = auto()
    EMBEDDING = auto()
    OUTPUT_LAYER = auto()
    ROUTER = auto()
    EXPERTS = auto()
    # Of NCCL's own records (agent/nccl_spans.py): what no hook has called.
    SEND = auto()
    RECV = auto()
    REDUCE = auto()
    GATHER = auto()
    SCATTER = auto()


FIRST_OF_FULL = Operation.LAYER_FORWARD

P2P = frozenset({Operation.FORWARD_SEND, Operation.FORWARD_RECV, Operation.BACKWARD_SEND, Operation.BACKWARD_RECV})
COLLECTIVES = frozenset(
    {
        Operation.ALL_REDUCE,
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.BROADCAST,
        Operation.ALL_TO_ALL,
        Operation.BARRIER,
    }
)
_WAITS = frozenset({Operation.WAIT_INPUT, Operation.WAIT_LINEARS, Operation.WAIT_WEIGHTS, Operation.WAIT_SLOT})
"""On a GPU its stream waits, or the host and then the stream, too."""
_HOST = _WAITS | frozenset(
    {
        Operation.DATA,
        Operation.CHECKPOINT,
        Operation.CHECKPOINT_WRITE,
        Operation.GC,
        Operation.PROCESSOR_PROBE,
        Operation.DECIDE,
        Operation.IN_FLIGHT,
    }
)
_PHASES = frozenset({Operation.STEP, Operation.GRAD_SYNC, Operation.EVALUATE})


def _kind(operation: Operation) -> SpanKind:
    if operation in P2P | {Operation.SEND, Operation.RECV}:
        return SpanKind.P2P
    if operation in COLLECTIVES | {Operation.REDUCE, Operation.GATHER, Operation.SCATTER}:
        return SpanKind.COLLECTIVE
    if operation in _HOST:
        return SpanKind.HOST
    return SpanKind.PHASE if operation in _PHASES else SpanKind.COMPUTE


NAMES: tuple[str, ...] = tuple(operation.name.lower() for operation in Operation)
KINDS: tuple[SpanKind, ...] = tuple(_kind(operation) for operation in Operation)

ON_HOST: tuple[bool, ...] = tuple(
    operation in _HOST - _WAITS | {Operation.STEP, Operation.EVALUATE} for operation in Operation
)
"""Measured by the host's clock also on a GPU; the others there by events on the current stream."""

BLOCKING: tuple[bool, ...] = tuple(operation in P2P | COLLECTIVES | _HOST for operation in Operation)
"""Taken out of the compute and phase rows around them, so that these count self time."""


def document() -> dict[str, Any]:
    """The table of names as a rank tells it to its agent."""
    return {
        "names": NAMES,
        "kinds": KINDS,
        "on_host": ON_HOST,
        "blocking": BLOCKING,
        "summarized": tuple(Operation.STEP < operation < FIRST_OF_FULL for operation in Operation),
    }
