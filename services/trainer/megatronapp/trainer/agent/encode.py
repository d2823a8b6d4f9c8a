"""Steps as messages: the summary of every step, and the spans of those that are traced in detail."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from megatronapp.core.logging import get_logger
from megatronapp.core.trace import columns
from megatronapp.core.trace.columns import Column
from megatronapp.core.trace.extents import Extent, extents_of
from megatronapp.core.trace.limits import MAX_ORDER_BYTES
from megatronapp.core.trace.validate import implausible_columns
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.activations import chosen_orders, peaks
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.segment import State
from megatronapp.trainer.agent.span_table import Flags, Ints, Spans, joined
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Step
from megatronapp.trainer.agent.summary import summarize
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

MAX_BATCH_ROWS = 16_384
"""Keeps a message below the 4 MiB that a gRPC server takes by default."""

_TAKEN = {"start_ns": "issue", "enqueue_ns": "enqueue", "cpu_ns": "cpu"} | {
    name: name
    for name in (
        "name",
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
}
"""Columns of a batch that are one of a rank's as it is."""
_logged: set[type[Exception]] = set()
"""Mistakes whose traceback is in the log."""


@dataclass(frozen=True, slots=True)
class StepMessages:
    """What a step becomes, but for what its rank knows beside it."""

    summary: trace_pb2.TraceMessage
    batches: Sequence[trace_pb2.TraceMessage]
    """Of a step that is traced in detail."""
    reason: str = ""
    """Why the step can't be true; empty when it can."""


def encode_all(steps: Sequence[tuple[SpanNames, Step]]) -> list[StepMessages]:
    """Of each step, which may be of any ranks."""
    groups: dict[Hashable, list[int]] = {}
    for at, (names, _) in enumerate(steps):
        groups.setdefault(names.key, []).append(at)
    found: dict[int, StepMessages] = {}
    for group in groups.values():
        found.update(zip(group, _encoded([steps[at][1] for at in group], steps[group[0]][0]), strict=True))
    return [found[at] for at in range(len(steps))]


def _encoded(steps: Sequence[Step], names: SpanNames) -> list[StepMessages]:
    """A mistake of our own costs the step that shows it, not those beside it. Its rank counts the step; the traceback
    is told once."""
    try:
        return encode(steps, names)
    except Exception as error:
        if len(steps) > 1:
            return [messages for step in steps for messages in _encoded([step], names)]
        if type(error) not in _logged:
            _logged.add(type(error))
            log.exception("step_not_encoded")
        return [StepMessages(trace_pb2.TraceMessage(), (), repr(error))]


def encode(steps: Sequence[Step], names: SpanNames) -> list[StepMessages]:
    """Of each step. The steps are those of any ranks with the same names."""
    spans, reasons = joined([step.table for step in steps], len(names.names))
    summaries = _summaries(steps, spans, names, reasons)
    batches = _batches(steps, spans, names, reasons)
    return [StepMessages(*each) for each in zip(summaries, batches, reasons, strict=True)]


def _summaries(
    steps: Sequence[Step], spans: Spans, names: SpanNames, reasons: list[str]
) -> list[trace_pb2.TraceMessage]:
    """Adds to the reasons."""
    rows, bounds = summarize(spans, names)
    extents = extents_of(rows, bounds)
    held = peaks(spans, names).tolist()
    messages = [
        trace_pb2.TraceMessage(summary=_summary(step.end, names, most, order))
        for step, most, order in zip(steps, held, chosen_orders(spans, names), strict=True)
    ]
    columns.fill_summaries([message.summary for message in messages], rows, bounds, extents)
    _add_reasons(reasons, range(len(steps)), implausible_columns(extents))
    return messages


def _batches(
    steps: Sequence[Step], spans: Spans, names: SpanNames, reasons: list[str]
) -> list[list[trace_pb2.TraceMessage]]:
    """Adds to the reasons."""
    messages: list[list[trace_pb2.TraceMessage]] = [[] for _ in steps]
    traced = [at for at, step in enumerate(steps) if step.end.traced]
    if not traced:
        return messages
    if any(steps[at].detail is not None for at in traced):
        spans = _detailed([steps[at] for at in traced], names, [reasons[at] for at in traced])
    elif len(traced) < len(steps):
        spans = spans.of(traced)
    ends, of_step = [0], list[int]()
    for at, begin, end in zip(traced, spans.bounds.tolist(), spans.bounds[1:].tolist(), strict=False):
        for part in range(begin, max(end, begin + 1), MAX_BATCH_ROWS):
            ends.append(min(part + MAX_BATCH_ROWS, end))
            of_step.append(at)
            messages[at].append(_batch(steps[at].end, names, last=ends[-1] == end))
    table, extents = _table(spans, names, bounds := np.array(ends))
    columns.fill_batches([message.batch for at in traced for message in messages[at]], table, bounds, extents)
    _add_reasons(reasons, of_step, implausible_columns(extents))
    return messages


def _detailed(steps: Sequence[Step], names: SpanNames, reasons: Sequence[str]) -> Spans:
    """With NCCL's own times where they are known. What can't be true has no rows."""
    tables = [
        step.table[:, :0] if reason else step.table if step.detail is None else step.detail
        for step, reason in zip(steps, reasons, strict=True)
    ]
    return joined(tables, len(names.names))[0]


def _add_reasons(reasons: list[str], steps: Sequence[int], implausible: Flags) -> None:
    for step, wrong in zip(steps, implausible.tolist(), strict=True):
        if wrong and not reasons[step]:
            reasons[step] = "numbers that are larger than can be"


def _summary(end: StepEnd, names: SpanNames, peak_activations: int, order: bytes) -> trace_pb2.StepSummary:
    return trace_pb2.StepSummary(
        step=end.step,
        start_ns=end.start_ns,
        duration_ns=end.duration_ns,
        cpu_ns=end.cpu_ns,
        names=names.names,
        phases=_phases(end.phases),  # type: ignore[arg-type]  # numbers will do
        progress=_progress(end),
        traced=bool(end.traced),
        peak_activations=peak_activations,
        order=order if len(order) <= MAX_ORDER_BYTES else b"",
    )


@lru_cache(maxsize=64)
def _phases(bits: int) -> tuple[int, ...]:
    return tuple(phase for phase in range(32) if bits >> phase & 1)


def _batch(end: StepEnd, names: SpanNames, *, last: bool) -> trace_pb2.TraceMessage:
    batch = trace_pb2.TraceBatch(
        step=end.step,
        names=names.names,
        reference_host_ns=end.reference_ns,
        reference_error_ns=end.reference_error_ns,
        last=last,
    )
    return trace_pb2.TraceMessage(batch=batch)


def memory_of(state: State, host_bytes: int) -> trace_pb2.Memory:
    return trace_pb2.Memory(
        allocated_bytes=state.allocated,
        reserved_bytes=state.reserved,
        peak_allocated_bytes=state.peak,
        device_bytes=state.total,
        host_bytes=host_bytes,
    )


def _table(spans: Spans, names: SpanNames, bounds: Ints) -> tuple[dict[str, Column], dict[str, Extent]]:
    """The columns of the spans' batches, of which each holds the rows between two bounds, and their extents."""
    name, stream = spans.columns["name"], spans.columns["stream"]
    if spans.enqueue.any():
        stream = np.where(stream > 0, stream, spans.enqueue > 0)
    taken: dict[str, Column] = {wire: spans.columns[own] for wire, own in _TAKEN.items()}
    made: dict[str, Column] = {"duration_ns": spans.duration, "kind": names.kinds[name], "stream": stream}
    if len(bounds) == len(spans.bounds):
        known = {wire: spans.extents[own] for wire, own in _TAKEN.items()}
    else:  # a step in several batches
        known = extents_of(taken, bounds)
    return taken | made, known | extents_of(made, bounds)


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
