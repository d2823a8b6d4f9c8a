"""Recorded steps of a pipeline, from a trace folder of the trainer (`--trace-dir`) or MegaScan's files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.trace import file
from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.megascan import find_files, read_megascan
from megatronapp.core.trace.span_names import SpanName
from megatronapp.v1 import trace_pb2

KINDS: dict[str, Kind] = {SpanName.FORWARD: Kind.FORWARD, SpanName.BACKWARD: Kind.BACKWARD, SpanName.WGRAD: Kind.WGRAD}
MAX_STAGES, MAX_CHUNKS, MAX_MICROBATCHES = 1024, 64, 65536


@dataclass(frozen=True, slots=True)
class _Pass:
    step: int
    replica: int
    stage: int
    operation: Operation
    begin_ns: int
    end_ns: int


def read_recording(path: Path) -> Recorded:
    """All whole steps but the first, which is no measure of the others, if there are several.

    Ranks of one worker run each pass together: it begins with the first of them and ends with the last. Raises
    NotFoundError, UsageError when a folder holds several jobs, and DataError.
    """
    if not path.exists():
        raise NotFoundError(f"{path} is not there; name a trace folder or MegaScan's files")
    passes = list(_of_trace_folder(path) if rank_files(path) else _of_megascan(path))
    if not passes:
        raise DataError(f"{path} holds no forward and backward spans; record with --trace-dir and each step in detail")
    layout = _layout(passes)
    steps = _whole_steps(layout, passes)
    if not steps:
        raise DataError(f"{path} holds no step of which all stages' passes were recorded")
    first = min(step for step, _ in steps)
    kept = [times for (step, _), times in sorted(steps.items()) if step != first] or list(steps.values())
    begins, ends = np.stack([begins for begins, _ in kept]), np.stack([ends for _, ends in kept])
    zero = begins.min(axis=(1, 2), keepdims=True)
    return Recorded(layout, begins - zero, ends - zero)


def rank_files(path: Path) -> list[Path]:
    """Of the newest attempt. Raises UsageError when the folder holds several jobs."""
    if not path.is_dir():
        return [path] if path.suffix == ".pb" else []
    files = sorted(path.rglob("rank-*.pb"))
    jobs = {each.parent.parent for each in files}
    if len(jobs) > 1:
        raise UsageError(f"{path} holds {len(jobs)} jobs; name the folder of one: {', '.join(map(str, sorted(jobs)))}")
    newest = max((each.parent for each in files), key=lambda folder: (len(folder.name), folder.name), default=path)
    return [each for each in files if each.parent == newest]


def usual_tail_ns(path: Path) -> float:
    """Of a trace folder: from the end of a step's last pass to that of its optimizer, the median of all steps but the
    first; 0 where no optimizer was recorded."""
    ends: dict[str, defaultdict[int, int]] = {"passes": defaultdict(int), "optimizer": defaultdict(int)}
    for batch, _, offset in _batches(path):
        columns = span_columns(batch, offset)
        until = columns["start_ns"] + columns["duration_ns"]
        for what, names in (("passes", KINDS.keys()), ("optimizer", {SpanName.OPTIMIZER})):
            of = np.isin(columns["name"], [number for number, name in enumerate(batch.names) if name in names])
            if of.any():
                ends[what][batch.step] = max(ends[what][batch.step], int(until[of].max()))
    steps = sorted(ends["passes"].keys() & ends["optimizer"].keys())
    tails = [max(0, ends["optimizer"][step] - ends["passes"][step]) for step in steps[1:] or steps]
    return float(np.median(tails)) if tails else 0.0


def _of_trace_folder(path: Path) -> Iterator[_Pass]:
    for batch, placement, offset in _batches(path):
        yield from _passes(batch, placement, offset)


def _batches(path: Path) -> Iterator[tuple[trace_pb2.TraceBatch, trace_pb2.Placement, int]]:
    """With whose they are, and what their times are to be moved by."""
    for rank_file in rank_files(path):
        placement = trace_pb2.Placement()
        for message in file.read(rank_file):
            if message.WhichOneof("body") == "hello":
                placement = message.hello.placement
            elif message.WhichOneof("body") == "batch":
                yield message.batch, placement, placement.host_unix_ns - placement.host_clock_ns


def _of_megascan(path: Path) -> Iterator[_Pass]:
    if not find_files(path):
        raise DataError(f"{path} is neither a trace folder nor one of MegaScan's files")
    for rank in read_megascan(path):
        for batch in rank.steps.values():
            yield from _passes(batch, rank.placement, 0)


def _passes(batch: trace_pb2.TraceBatch, placement: trace_pb2.Placement, offset_ns: int) -> Iterator[_Pass]:
    columns = span_columns(batch, offset_ns)
    kinds = [KINDS.get(name) for name in batch.names]
    wanted = ("name", "start_ns", "duration_ns", "chunk", "microbatch")
    for name, start, duration, chunk, microbatch in zip(*(columns[each].tolist() for each in wanted), strict=True):
        kind = kinds[name]
        if kind is None or microbatch < 0:
            continue
        if placement.pipeline >= MAX_STAGES or chunk >= MAX_CHUNKS or microbatch >= MAX_MICROBATCHES:
            raise DataError(f"a pass of microbatch {microbatch}, chunk {chunk} on stage {placement.pipeline}: too many")
        operation = Operation(kind, max(0, chunk), microbatch)
        yield _Pass(batch.step, placement.data, placement.pipeline, operation, start, start + duration)


def _layout(passes: Iterable[_Pass]) -> Layout:
    """As many microbatches as most steps had: an evaluation goes on counting where its step ended."""
    last: defaultdict[tuple[int, int], int] = defaultdict(int)
    for each in passes:
        if each.operation.kind is Kind.BACKWARD:
            last[each.step, each.replica] = max(last[each.step, each.replica], each.operation.microbatch)
    if not last:
        raise DataError("the recording has no backward passes; only training steps can be simulated")
    return Layout(
        stages=1 + max(each.stage for each in passes),
        chunks=1 + max(each.operation.chunk for each in passes),
        microbatches=1 + Counter(last.values()).most_common(1)[0][0],
        split=any(each.operation.kind is Kind.WGRAD for each in passes),
    )


Times = tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]


def _whole_steps(layout: Layout, passes: Iterable[_Pass]) -> dict[tuple[int, int], Times]:
    shape = (layout.stages, layout.operations)
    unknown = np.iinfo(np.int64).max
    found: dict[tuple[int, int], Times] = {}
    for each in passes:
        if each.operation.microbatch >= layout.microbatches:
            continue
        key = each.step, each.replica
        begins, ends = found.setdefault(key, (np.full(shape, unknown), np.full(shape, -1)))
        place = each.stage, layout.number(each.operation)
        begins[place] = min(begins[place], each.begin_ns)
        ends[place] = max(ends[place], each.end_ns)
    return {key: times for key, times in found.items() if (times[0] != unknown).all()}
