"""MegaScan's traces: its files per rank (`benchmark-data-*.json`) and merged ones (Chrome trace events), as StepTables.

Merged files come in two kinds: begin and end events that name their iteration, and complete events (`X`) below an
`iteration` event. An event whose other half was lost is left out.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.steps import RankTable, StepTable
from megatronapp.v1 import trace_pb2

ITERATION = "iteration"
NAMES = {
    **dict.fromkeys(("forward", "forward-warmup"), "forward"),
    **dict.fromkeys(("backward", "backward-cooldown"), "backward"),
    **dict.fromkeys(("optimizer",), "optimizer"),
    **dict.fromkeys(("recv-warmup", "recv-extra"), "forward_recv"),
    **dict.fromkeys(("send-warmup", "exchange-next"), "forward_send"),
    **dict.fromkeys(("recv-cooldown",), "backward_recv"),
    **dict.fromkeys(("send-extra", "send-cooldown", "exchange-prev"), "backward_send"),
    **dict.fromkeys(("allreduce", "_reduce"), "all_reduce"),
    **dict.fromkeys(("_gather_along_last_dim", "_gather_along_first_dim"), "all_gather"),
    **dict.fromkeys(("_reduce_scatter_along_last_dim", "_reduce_scatter_along_first_dim"), "reduce_scatter"),
}
"""MegaScan's scopes in our own names of spans. Others lie around or within these."""
OPERATIONS = tuple(sorted(set(NAMES.values())))
KINDS = np.array(
    [
        trace_pb2.SPAN_KIND_COMPUTE
        if name in ("forward", "backward", "optimizer")
        else trace_pb2.SPAN_KIND_P2P
        if name.endswith(("_send", "_recv"))
        else trace_pb2.SPAN_KIND_COLLECTIVE
        for name in OPERATIONS
    ]
)
_PROCESS = re.compile(r"DP(\d+)-PP(\d+)-TP(\d+)")


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds from the iteration's begin."""

    name: str
    start: float
    end: float
    chunk: int
    microbatch: int


@dataclass(slots=True)
class Rank:
    data: int = 0
    pipeline: int = 0
    tensor: int = 0
    iterations: defaultdict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))


def find_files(path: Path) -> list[Path]:
    """MegaScan's files at a path: the file itself, or a folder's files of single ranks; else none."""
    if path.is_file():
        return [path] if path.suffix == ".json" else []
    return sorted(path.glob("benchmark-data-*-pipeline-*-tensor-*.json"))


def read(files: Iterable[Path]) -> dict[int, Rank]:
    """The ranks by global rank. Raises DataError when a file is none of MegaScan's."""
    ranks: dict[int, Rank] = {}
    for path in files:
        events = _load(path)
        try:
            if any("rel_ts" in event for event in events):
                _read_rank_file(events, ranks)
            else:
                _read_merged(events, ranks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: an event can't be understood: {error!r}") from error
        if not any(rank.iterations for rank in ranks.values()):
            raise DataError(f"{path}: holds no iteration; it is not one of MegaScan's traces")
    return ranks


def step_tables(ranks: dict[int, Rank]) -> Iterator[StepTable]:
    """One table per iteration that any rank recorded, counted from 1. The first one is marked as a first step.

    A rank is missing from an iteration of which it lost events: its gaps would look like a slow host.
    """
    order = sorted(ranks)
    who = _rank_table([ranks[rank] for rank in order], order)
    computes = [
        span for rank in ranks.values() for spans in rank.iterations.values() for span in spans if span.microbatch >= 0
    ]
    whole = {number: _whole(rank) for number, rank in ranks.items()}
    for number in sorted({number for iterations in whole.values() for number in iterations}):
        spans = [whole[rank].get(number, []) for rank in order]
        seconds = [max(s.end for s in own) - min(s.start for s in own) if own else np.nan for own in spans]
        first = number == min(n for rank in ranks.values() for n in rank.iterations)
        yield StepTable(
            step=number + 1,
            ranks=who,
            rows=make_rows(_columns(spans)),
            operations=OPERATIONS,
            kinds=KINDS,
            communicators=(),
            start=np.full(len(order), np.nan),
            duration=np.array(seconds),
            cpu=np.zeros(len(order)),
            microbatches=max((span.microbatch for span in computes), default=0) + 1,
            virtual_stages=max((span.chunk for span in computes), default=0) + 1,
            phases=frozenset([int(trace_pb2.PHASE_FIRST_STEP)] if first else []),
            missing=tuple(rank for rank, own in zip(order, spans, strict=True) if not own),
        )


def _whole(rank: Rank) -> dict[int, list[Span]]:
    """The rank's iterations of which no event was lost: those with as many spans as most have, or more."""
    counts = [len(spans) for spans in rank.iterations.values()]
    usual = max(set(counts), key=counts.count, default=0)
    return {number: spans for number, spans in rank.iterations.items() if len(spans) >= usual}


def _load(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from error
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(event, dict) and "ph" in event for event in events):
        raise DataError(f"{path}: not a list of trace events; it is not one of MegaScan's traces")
    return events


def _read_rank_file(events: list[dict[str, Any]], ranks: dict[int, Rank]) -> None:
    """Rows of one rank; times are nanoseconds from the begin of the iteration, which is a pair of rows itself."""
    number, begun = -1, dict[str, dict[str, Any]]()
    for row in events:
        rank = ranks.setdefault(int(row["g_rk"]), Rank(int(row["dp_rk"]), int(row["pp_rk"]), int(row["tp_rk"])))
        if row["name"] == ITERATION:
            number = max(rank.iterations, default=-1) + 1 if row["ph"] == "B" else number
            rank.iterations[number]  # an iteration without spans counts too
        elif row["ph"] == "B":
            begun[row["name"]] = row
        elif row["ph"] == "E" and row["name"] in begun:
            begin = begun.pop(row["name"])
            _add(rank, number, row["name"], begin["rel_ts"] * 1e-9, row["rel_ts"] * 1e-9, {**begin, **row})


def _read_merged(events: list[dict[str, Any]], ranks: dict[int, Rank]) -> None:
    """Times are microseconds, pid the rank."""
    begun = dict[tuple[int, str], dict[str, Any]]()
    for event in events:
        pid, phase, name = int(event["pid"]), event["ph"], event["name"]
        if phase == "M":
            place = _PROCESS.search(str(event.get("args", {}).get("name", "")))
            if name == "process_name" and place:
                rank = ranks.setdefault(pid, Rank())
                rank.data, rank.pipeline, rank.tensor = (int(number) for number in place.groups())
        elif phase == "B":
            begun[pid, name] = event
        elif phase == "E" and (pid, name) in begun:
            begin, arguments = begun.pop((pid, name)), event.get("args", {})
            rank = ranks.setdefault(pid, Rank(pipeline=int(arguments.get("pp_rank", pid))))
            _add(rank, int(arguments["iteration"]), name, begin["ts"] * 1e-6, event["ts"] * 1e-6, arguments)
    _add_complete([event for event in events if event["ph"] == "X"], ranks)


def _add_complete(events: list[dict[str, Any]], ranks: dict[int, Rank]) -> None:
    """Complete events belong to the iteration of their rank in which they begin."""
    begins: defaultdict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["name"] == ITERATION:
            begins[int(event["pid"])].append(float(event["ts"]))
    for event in events:
        begun = sorted(begins[int(event["pid"])])
        number = int(np.searchsorted(begun, float(event["ts"]), side="right")) - 1
        if number < 0 or event["name"] == ITERATION:
            continue
        start = event["ts"] - begun[number]
        rank = ranks.setdefault(int(event["pid"]), Rank(pipeline=int(event["pid"])))
        _add(rank, number, event["name"], start * 1e-6, (start + event["dur"]) * 1e-6, event.get("args", {}))


def _add(rank: Rank, iteration: int, name: str, start: float, end: float, arguments: dict[str, Any]) -> None:
    if name in NAMES and end >= start:
        microbatch = arguments.get("microbatch", arguments.get("micro_batch_index", -1))
        span = Span(NAMES[name], start, end, int(arguments.get("model_chunk", 0)), int(microbatch))
        rank.iterations[iteration].append(span)


def _rank_table(ranks: list[Rank], order: list[int]) -> RankTable:
    zeros, unknown = np.zeros(len(order), np.int64), np.full(len(order), "")
    return RankTable(
        rank=np.array(order, np.int64),
        pipeline=np.array([rank.pipeline for rank in ranks], np.int64),
        data=np.array([rank.data for rank in ranks], np.int64),
        tensor=np.array([rank.tensor for rank in ranks], np.int64),
        context=zeros,
        expert=zeros,
        node=unknown,
        gpu_uuid=unknown,
        on_cpu=np.zeros(len(order), np.bool_),
    )


def _columns(spans_by_rank: list[list[Span]]) -> dict[str, list[float]]:
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
