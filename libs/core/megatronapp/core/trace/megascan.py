"""MegaScan's recordings as our columns: its files per rank and its merged Chrome traces.

A file per rank (`benchmark-data-{dp}-pipeline-{pp}-tensor-{tp}.json`) is a list of begin (B), end (E) and instant (i)
rows with times in ns from the begin of their iteration; an iteration is a pair of rows itself, without a number. The
recorder's known defects are met: an iteration written more than once counts once, a row without its other half is left
out and counted as dropped. A merged file holds Chrome events in us, pid being the rank.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.json_file import load_json_file
from megatronapp.core.trace.columns import fill_spans
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.core.trace.ranges import ImplausibleError
from megatronapp.core.trace.span_names import SpanName, kind_of
from megatronapp.core.trace.validate import check_layout
from megatronapp.core.trace.values import SpanKind
from megatronapp.v1 import trace_pb2

ITERATION = "iteration"
NAMES = {
    **dict.fromkeys(("forward", "forward-warmup"), SpanName.FORWARD),
    **dict.fromkeys(("backward", "backward-cooldown"), SpanName.BACKWARD),
    "optimizer": SpanName.OPTIMIZER,
    ITERATION: SpanName.STEP,
    **dict.fromkeys(("recv-warmup", "recv-extra"), SpanName.FORWARD_RECV),
    "send-warmup": SpanName.FORWARD_SEND,
    "recv-cooldown": SpanName.BACKWARD_RECV,
    **dict.fromkeys(("send-extra", "send-cooldown"), SpanName.BACKWARD_SEND),
    **dict.fromkeys(("allreduce", "_reduce"), SpanName.ALL_REDUCE),
    **dict.fromkeys(("_gather_along_last_dim", "_gather_along_first_dim"), SpanName.ALL_GATHER),
    **dict.fromkeys(("_reduce_scatter_along_last_dim", "_reduce_scatter_along_first_dim"), SpanName.REDUCE_SCATTER),
    "grad-sync": SpanName.GRAD_SYNC,
}
"""MegaScan's scopes that mean what a span of ours means (docs/spans.md); others keep their names."""

_KINDS: dict[str, int] = {
    **{name: kind_of(name) for name in NAMES.values()},
    **dict.fromkeys(("exchange-next", "exchange-prev"), SpanKind.P2P),
}
MAX_FILE_BYTES = 1 << 30
_RANK_FILE = "benchmark-data-*-pipeline-*-tensor-*.json"
_PROCESS = re.compile(r"DP(\d+)-PP(\d+)-TP(\d+)")


@dataclass(slots=True)
class RankTrace:
    """One rank's steps. Times are ns on a clock that all ranks of the recording share, as far as MegaScan shares one:
    each iteration begins at one moment on all ranks."""

    rank: int
    placement: trace_pb2.Placement
    steps: dict[int, trace_pb2.TraceBatch]
    """By step, counted from 1."""


@dataclass(frozen=True, slots=True)
class _Span:
    name: str
    start_ns: int
    end_ns: int
    stream: int
    arguments: dict[str, Any]


@dataclass(slots=True)
class _Iteration:
    spans: list[_Span] = field(default_factory=list)
    pad_ns: int = 0
    dropped: int = 0

    @property
    def end_ns(self) -> int:
        return max((span.end_ns for span in self.spans), default=0)


@dataclass(slots=True)
class _Rank:
    placement: trace_pb2.Placement = field(default_factory=trace_pb2.Placement)
    iterations: dict[int, _Iteration] = field(default_factory=dict)


def find_files(path: Path) -> list[Path]:
    """MegaScan's files at a path: the file itself, or a folder's files of single ranks; else none."""
    if path.is_file():
        return [path] if path.suffix == ".json" else []
    return sorted(path.glob(_RANK_FILE))


def read_megascan(path: Path) -> list[RankTrace]:
    """Read a merged file, a file of one rank, or a folder of such files; ranks ascending.

    Raises DataError when there is none, or when a file is none of MegaScan's.
    """
    files = find_files(path)
    if not files:
        raise DataError(f"{path}: holds no {_RANK_FILE}")
    ranks: dict[int, _Rank] = {}
    merged = False
    for file in files:
        rows = _load(file)
        merged = not any("rel_ts" in row for row in rows)
        with _understood(file):
            (_read_merged if merged else _read_rank_file)(rows, ranks)
    if not any(rank.iterations for rank in ranks.values()):
        raise DataError(f"{path}: holds no iteration; it is not one of MegaScan's recordings")
    if min(ranks) < 0 or max(ranks) >= MAX_WORLD:
        raise DataError(f"{path}: ranks from {min(ranks)} to {max(ranks)}; they count from 0 to {MAX_WORLD - 1}")
    with _understood(path):
        if not merged:
            _lay_end_to_end(ranks)
        sizes = _sizes(ranks)
        for rank in ranks.values():
            rank.placement.sizes.CopyFrom(sizes)
        _check(path, ranks)
        sequences = _Sequences(ranks)
        return [_rank_trace(number, ranks[number], sequences) for number in sorted(ranks)]


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """What makes no sense, wherever it shows, is the file's fault: numbers without bounds, texts for numbers."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DataError(f"{path}: an event can't be understood: {repr(error)[:200]}") from error


def _load(file: Path) -> list[dict[str, Any]]:
    content = load_json_file(file, MAX_FILE_BYTES)
    rows = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "ph" in row for row in rows):
        raise DataError(f"{file}: not a list of trace events; it is not one of MegaScan's recordings")
    return rows


def _read_rank_file(rows: list[dict[str, Any]], ranks: dict[int, _Rank]) -> None:
    seen: set[str] = set()
    for number_of_rank, block in _iterations(rows):
        written = json.dumps(block, sort_keys=True)
        if written in seen:
            continue
        seen.add(written)
        first = block[0]
        rank = ranks.setdefault(number_of_rank, _Rank())
        place = rank.placement
        place.data, place.pipeline, place.tensor = (int(first[key]) for key in ("dp_rk", "pp_rk", "tp_rk"))
        spans, dropped = _pair((row["name"], row["ph"], int(row["rel_ts"]), row) for row in block)
        number = max(rank.iterations, default=-1) + 1
        rank.iterations[number] = _Iteration(spans, int(first.get("pad_before", 0)), dropped)


def _iterations(rows: list[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(rank, rows) from each begin of an iteration to the next."""
    block: list[dict[str, Any]] = []
    for row in rows:
        if row["name"] == ITERATION and row["ph"] == "B" and block:
            yield int(block[0]["g_rk"]), block
            block = []
        if block or row["name"] == ITERATION:
            block.append(row)
    if block:
        yield int(block[0]["g_rk"]), block


def _pair(rows: Iterable[tuple[str, str, int, dict[str, Any]]], stream: int = 0) -> tuple[list[_Span], int]:
    """Spans of B and E rows in their order, and how many rows had no other half."""
    open_rows: list[tuple[str, int, dict[str, Any]]] = []
    spans: list[_Span] = []
    dropped = 0
    for name, phase, at_ns, row in rows:
        if phase == "B":
            open_rows.append((name, at_ns, row))
        elif phase == "E":
            index = next((i for i in range(len(open_rows) - 1, -1, -1) if open_rows[i][0] == name), None)
            if index is None:
                dropped += 1
                continue
            _, start_ns, begin = open_rows.pop(index)
            spans.append(_Span(name, start_ns, max(start_ns, at_ns), stream, {**begin, **row}))
    return sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)), dropped + len(open_rows)


def _read_merged(rows: list[dict[str, Any]], ranks: dict[int, _Rank]) -> None:
    tracks: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        pid = int(row["pid"])
        place = _PROCESS.search(str(row.get("args", {}).get("name", "")))
        if row["ph"] == "M" and row["name"] == "process_name" and place:
            placement = ranks.setdefault(pid, _Rank()).placement
            placement.data, placement.pipeline, placement.tensor = (int(number) for number in place.groups())
        elif row["ph"] in {"B", "E", "X"}:
            tracks[pid, int(row.get("tid", 0))].append(row)
    for (pid, tid), track in tracks.items():
        rank = ranks.setdefault(pid, _Rank())
        for number, iteration in _split_track(track, tid).items():
            own = rank.iterations.setdefault(number, _Iteration())
            own.spans += iteration.spans
            own.dropped += iteration.dropped
        pipeline = [s.arguments.get("pp_rank") for i in rank.iterations.values() for s in i.spans]
        rank.placement.pipeline = next((int(p) for p in pipeline if p is not None), rank.placement.pipeline)


def _split_track(track: list[dict[str, Any]], stream: int) -> dict[int, _Iteration]:
    """The iterations of one track: by the events' own number, else by the iteration in which they begin."""
    halves = ((row["name"], row["ph"], _us(row["ts"]), row.get("args", {})) for row in track if row["ph"] != "X")
    spans, dropped = _pair(halves, stream)
    for row in track:
        if row["ph"] == "X":
            start = _us(row["ts"])
            spans.append(_Span(row["name"], start, start + _us(row["dur"]), stream, row.get("args", {})))
    begins = sorted(span.start_ns for span in spans if span.name == ITERATION)
    iterations: defaultdict[int, _Iteration] = defaultdict(_Iteration)
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        begun = sum(begin <= span.start_ns for begin in begins) - 1 if begins else 0
        iterations[int(span.arguments.get("iteration", max(0, begun)))].spans.append(span)
    if iterations:
        iterations[min(iterations)].dropped = dropped
    return iterations


def _us(value: float) -> int:
    return round(float(value) * 1000)


def _lay_end_to_end(ranks: dict[int, _Rank]) -> None:
    """Give iterations, each of which begins at 0, their place one after the other."""
    base = 0
    for number in sorted({number for rank in ranks.values() for number in rank.iterations}):
        present = [rank.iterations[number] for rank in ranks.values() if number in rank.iterations]
        base += max(iteration.pad_ns for iteration in present)
        length = max(iteration.end_ns for iteration in present)
        for iteration in present:
            iteration.spans = [
                _Span(span.name, base + span.start_ns, base + span.end_ns, span.stream, span.arguments)
                for span in iteration.spans
            ]
        base += length


def _sizes(ranks: dict[int, _Rank]) -> trace_pb2.ParallelSizes:
    places = [rank.placement for rank in ranks.values()]
    chunks = [s.arguments.get("model_chunk", 0) for r in ranks.values() for i in r.iterations.values() for s in i.spans]
    return trace_pb2.ParallelSizes(
        world=max(ranks) + 1,
        data=max(place.data for place in places) + 1,
        pipeline=max(place.pipeline for place in places) + 1,
        tensor=max(place.tensor for place in places) + 1,
        virtual_pipeline=max((int(chunk) for chunk in chunks), default=0) + 1,
    )


def _check(path: Path, ranks: dict[int, _Rank]) -> None:
    """What a step is made of by these numbers must fit into memory. Raises DataError."""
    spans = (span for rank in ranks.values() for content in rank.iterations.values() for span in content.spans)
    microbatches = max((_microbatch(span) for span in spans), default=0) + 1
    for rank in ranks.values():
        try:
            check_layout(rank.placement, microbatches)
        except ImplausibleError as error:
            raise DataError(f"{path}: {error}") from error


class _Sequences:
    """Sequence numbers of collectives, which MegaScan does not record: the n-th operation of a group in an iteration is
    the same on all members only if all recorded the same operations in it; otherwise none is numbered."""

    def __init__(self, ranks: dict[int, _Rank]) -> None:
        self._first: dict[tuple[int, tuple[int, ...]], int] = {}
        recorded: defaultdict[tuple[int, tuple[int, ...]], dict[int, list[str]]] = defaultdict(dict)
        for number, rank in ranks.items():
            for iteration, content in rank.iterations.items():
                for span in content.spans:
                    if group := _group(number, span):
                        recorded[iteration, group].setdefault(number, []).append(span.name)
        used: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for (iteration, group), members in sorted(recorded.items()):
            names = list(members.values())
            if set(members) == set(group) and all(other == names[0] for other in names):
                self._first[iteration, group] = used[group] + 1
                used[group] += len(names[0])

    def numbers(self, rank: int, iteration: int, spans: list[_Span]) -> list[int]:
        """One per span; 0: none."""
        count: defaultdict[tuple[int, ...], int] = defaultdict(int)
        numbers = []
        for span in spans:
            group = _group(rank, span)
            first = self._first.get((iteration, group), 0) if group else 0
            numbers.append(first + count[group] if first else 0)
            count[group] += 1
        return numbers


def _group(rank: int, span: _Span) -> tuple[int, ...]:
    """All members of a collective's group, ascending; empty for other spans."""
    others = span.arguments.get("group")
    if not others or _kind(span.name) != trace_pb2.SPAN_KIND_COLLECTIVE:
        return ()
    return tuple(sorted({rank, *(int(other) for other in others)}))


def _kind(name: str) -> int:
    return _KINDS.get(NAMES.get(name, name), trace_pb2.SPAN_KIND_COMPUTE)


def _rank_trace(number: int, rank: _Rank, sequences: _Sequences) -> RankTrace:
    communicators: dict[tuple[int, ...], int] = {}
    steps = {}
    for iteration, content in sorted(rank.iterations.items()):
        numbers = sequences.numbers(number, iteration, content.spans)
        steps[iteration + 1] = _batch(number, iteration + 1, content, numbers, communicators)
    return RankTrace(number, rank.placement, steps)


def _batch(
    rank: int, step: int, iteration: _Iteration, sequences: list[int], communicators: dict[tuple[int, ...], int]
) -> trace_pb2.TraceBatch:
    spans = iteration.spans
    groups = [_group(rank, span) for span in spans]
    for group in groups:
        if group:
            communicators.setdefault(group, len(communicators) + 1)
    names = {name: index for index, name in enumerate(dict.fromkeys(NAMES.get(s.name, s.name) for s in spans))}
    batch = trace_pb2.TraceBatch(step=step, names=list(names), last=True, dropped=iteration.dropped)
    for group, index in communicators.items():
        identity = "group:" + "-".join(map(str, group))
        batch.communicators.add(index=index, id=identity, kind="group", ranks=group)
    columns: dict[str, list[int]] = {
        "start_ns": [span.start_ns for span in spans],
        "duration_ns": [span.end_ns - span.start_ns for span in spans],
        "name": [names[NAMES.get(span.name, span.name)] for span in spans],
        "kind": [_kind(span.name) for span in spans],
        "stream": [span.stream + 1 for span in spans],
        "microbatch": [_microbatch(span) for span in spans],
        "chunk": [_integer(span, ("model_chunk",)) for span in spans],
        "peer": [_peer(span) for span in spans],
        "bytes": [max(0, _integer(span, ("data",))) for span in spans],
        "communicator": [communicators.get(group, 0) for group in groups],
        "sequence": sequences,
    }
    fill_spans(batch, columns)
    return batch


def _integer(span: _Span, keys: tuple[str, ...]) -> int:
    return next((int(span.arguments[key]) for key in keys if key in span.arguments), -1)


def _microbatch(span: _Span) -> int:
    return _integer(span, ("microbatch", "micro_batch_index"))


def _peer(span: _Span) -> int:
    others = span.arguments.get("group") or []
    return int(others[0]) if len(others) == 1 and _kind(span.name) == trace_pb2.SPAN_KIND_P2P else -1
