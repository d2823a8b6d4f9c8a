"""A rank's steps as messages: the summary of every step, and the spans of those that are traced in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace import columns
from megatronapp.core.trace.values import Communicator
from megatronapp.core.trace.wire import to_proto
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.segment import State
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Spans, Step
from megatronapp.trainer.agent.summary import summarize
from megatronapp.v1 import trace_pb2

MAX_BATCH_ROWS = 16_384
"""Keeps a message below the 4 MiB that a gRPC server takes by default."""

_COPIED = (
    "communicator",
    "microbatch",
    "chunk",
    "layer",
    "peer",
    "sequence",
    "bytes",
    "tokens",
    "length_squares",
    "message",
)


def summary_of(
    step: Step,
    names: SpanNames,
    communicators: Sequence[Communicator],
    memory: trace_pb2.Memory,
    dropped: int,
) -> trace_pb2.StepSummary:
    """`communicators`: those since the last summary."""
    end = step.end
    summary = trace_pb2.StepSummary(
        step=end.step,
        start_ns=end.start_ns,
        duration_ns=end.duration_ns,
        cpu_ns=end.cpu_ns,
        names=names.names,
        communicators=map(to_proto, communicators),
        phases=[phase for phase in range(32) if end.phases >> phase & 1],  # type: ignore[misc]  # numbers will do
        progress=_progress(end),
        dropped=dropped,
        traced=bool(end.traced),
        memory=memory,
    )
    columns.fill_summary(summary, summarize(step.spans, names))
    return summary


def batches_of(step: Step, names: SpanNames, dropped: int) -> Iterator[trace_pb2.TraceBatch]:
    table = _table(step.spans, names)
    for begin in range(0, max(len(step.spans), 1), MAX_BATCH_ROWS):
        batch = trace_pb2.TraceBatch(
            step=step.end.step,
            names=names.names,
            reference_host_ns=step.end.reference_ns,
            reference_error_ns=step.end.reference_error_ns,
            dropped=dropped,
            last=begin + MAX_BATCH_ROWS >= len(step.spans),
        )
        columns.fill_spans(batch, {name: column[begin : begin + MAX_BATCH_ROWS] for name, column in table.items()})
        yield batch


def memory_of(state: State, host_bytes: int) -> trace_pb2.Memory:
    return trace_pb2.Memory(
        allocated_bytes=state.allocated,
        reserved_bytes=state.reserved,
        peak_allocated_bytes=state.peak,
        device_bytes=state.total,
        host_bytes=host_bytes,
    )


def _table(spans: Spans, names: SpanNames) -> dict[str, npt.NDArray[Any]]:
    stream = spans.columns["stream"]
    return {
        "start_ns": spans.start,
        "duration_ns": spans.duration,
        "enqueue_ns": spans.enqueue,
        "cpu_ns": spans.cpu,
        "name": spans.columns["name"],
        "kind": names.kinds[spans.columns["name"]],
        "stream": np.where(stream > 0, stream, (spans.enqueue > 0).astype(np.int64)),
        **{name: spans.columns[name] for name in _COPIED},
    }


def _progress(end: StepEnd) -> trace_pb2.Progress | None:
    """None: the rank knew nothing of it."""
    if not end.known:
        return None

    def known(bit: int, value: float) -> float | None:
        return value if end.known & bit else None

    return trace_pb2.Progress(
        loss=known(layout.KNOWN_LOSS, end.loss),
        learning_rate=known(layout.KNOWN_LEARNING_RATE, end.learning_rate),
        grad_norm=known(layout.KNOWN_GRAD_NORM, end.grad_norm),
        tokens_per_second=known(layout.KNOWN_SPEED, end.tokens_per_second),
        tflops_per_gpu=known(layout.KNOWN_TERAFLOPS, end.teraflops),
        total_steps=end.total_steps,
    )
