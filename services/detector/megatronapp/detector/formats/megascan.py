"""MegaScan's recordings as StepTables. Files are read by core.trace.megascan, for every service alike; nothing here
knows what they look like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.megascan import RankTrace
from megatronapp.core.trace.span_names import RECEIVES, SENDS, STEP_COMPUTE, SpanName, kind_of
from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.steps import RankTable, StepTable
from megatronapp.v1 import trace_pb2

JUDGED = (
    *STEP_COMPUTE,
    *SENDS,
    *RECEIVES,
    SpanName.ALL_REDUCE,
    SpanName.ALL_GATHER,
    SpanName.REDUCE_SCATTER,
)
KINDS = {SpanName(name): kind_of(SpanName(name)) for name in JUDGED}
"""The operations that are judged. Other spans lie around or within these."""
OPERATIONS = tuple(sorted(KINDS))
BOTH_WAYS = {"exchange-next": SpanName.FORWARD_SEND, "exchange-prev": SpanName.BACKWARD_SEND}
"""A send and a receive in one scope count as the send."""


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds."""

    name: str
    start: float
    end: float
    chunk: int
    microbatch: int


def step_tables(traces: Sequence[RankTrace]) -> Iterator[StepTable]:
    """One table per step that any rank recorded. The first one is marked as a first step.

    A rank is missing from a step of which it lost events: its gaps would look like a slow host.
    """
    order = [trace.rank for trace in traces]
    ranks = _rank_table(traces)
    recorded = {trace.rank: {step: _spans(batch) for step, batch in trace.steps.items()} for trace in traces}
    computes = [s for steps in recorded.values() for spans in steps.values() for s in spans if s.microbatch >= 0]
    whole = {rank: _whole(steps) for rank, steps in recorded.items()}
    first = min((step for steps in recorded.values() for step in steps), default=0)
    for step in sorted({step for steps in whole.values() for step in steps}):
        spans = [whole[rank].get(step, []) for rank in order]
        if not any(spans):
            continue
        seconds = [max(s.end for s in own) - min(s.start for s in own) if own else np.nan for own in spans]
        yield StepTable(
            step=step,
            ranks=ranks,
            rows=make_rows(_columns(spans)),
            operations=OPERATIONS,
            kinds=np.array([KINDS[name] for name in OPERATIONS], np.int64),
            communicators=(),
            start=np.full(len(order), np.nan),
            duration=np.array(seconds),
            cpu=np.zeros(len(order)),
            microbatches=max(1, len({span.microbatch for span in computes})),
            virtual_stages=max((span.chunk for span in computes), default=0) + 1,
            phases=frozenset([int(trace_pb2.PHASE_FIRST_STEP)] if step == first else []),
            missing=tuple(rank for rank, own in zip(order, spans, strict=True) if not own),
        )


def _spans(batch: trace_pb2.TraceBatch) -> list[Span]:
    """The spans that are judged."""
    columns = span_columns(batch)
    names = [BOTH_WAYS.get(name, name) for name in batch.names]
    seconds = columns["duration_ns"] * 1e-9
    start = (columns["start_ns"] - columns["start_ns"].min(initial=0)) * 1e-9
    rows = zip(columns["name"], start, start + seconds, columns["chunk"], columns["microbatch"], strict=True)
    return [
        Span(names[name], float(begin), float(end), max(0, int(chunk)), int(microbatch))
        for name, begin, end, chunk, microbatch in rows
        if names[name] in KINDS
    ]


def _whole(steps: dict[int, list[Span]]) -> dict[int, list[Span]]:
    """The rank's steps of which no event was lost: those with as many spans as most have, or more."""
    counts = [len(spans) for spans in steps.values()]
    usual = max(set(counts), key=counts.count, default=0)
    return {step: spans for step, spans in steps.items() if len(spans) >= usual}


def _rank_table(traces: Sequence[RankTrace]) -> RankTable:
    zeros, unknown = np.zeros(len(traces), np.int64), np.full(len(traces), "")
    return RankTable(
        rank=np.array([trace.rank for trace in traces], np.int64),
        pipeline=np.array([trace.placement.pipeline for trace in traces], np.int64),
        data=np.array([trace.placement.data for trace in traces], np.int64),
        tensor=np.array([trace.placement.tensor for trace in traces], np.int64),
        context=zeros,
        expert=zeros,
        node=unknown,
        gpu_uuid=unknown,
        device=unknown,
        on_cpu=np.zeros(len(traces), np.bool_),
    )


def _columns(spans_by_rank: Iterable[list[Span]]) -> dict[str, list[float]]:
    """Rows of self times: a span's duration less that of the spans within it."""
    times: defaultdict[tuple[int, str, int], list[float]] = defaultdict(list)
    for rank, spans in enumerate(spans_by_rank):
        for span, seconds in _self_seconds(spans):
            times[rank, span.name, span.chunk].append(seconds)
    return {
        "rank": [rank for rank, _, _ in times],
        "operation": [OPERATIONS.index(name) for _, name, _ in times],
        "chunk": [chunk for _, _, chunk in times],
        "count": [len(each) for each in times.values()],
        "duration": [sum(each) for each in times.values()],
        "duration_min": [min(each) for each in times.values()],
        "duration_max": [max(each) for each in times.values()],
    }


def _self_seconds(spans: list[Span]) -> list[tuple[Span, float]]:
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    own = [span.end - span.start for span in ordered]
    around: list[int] = []
    for index, span in enumerate(ordered):
        while around and ordered[around[-1]].end < span.end:
            around.pop()
        if around:
            own[around[-1]] -= span.end - span.start
        around.append(index)
    return [(span, max(seconds, 0.0)) for span, seconds in zip(ordered, own, strict=True)]
