"""Kineto's traces as StepTables, and where a step's time goes.

Whether ranks are peers is not told by a trace: those are that launch the same kernels equally often. A rank without a
peer is not judged. Communication is not either: a kernel of NCCL lasts as long as its slowest member lets it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from megatronapp.core.trace.span_names import SpanName, kind_of
from megatronapp.detector.formats import kineto
from megatronapp.detector.formats.kineto import KinetoTrace, Work
from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.report import Breakdown, OperatorTime
from megatronapp.detector.steps import Floats, Ints, RankTable, StepTable
from megatronapp.v1 import trace_pb2

PARTS = {
    kineto.FORWARD: SpanName.FORWARD,
    kineto.BACKWARD: SpanName.BACKWARD,
    kineto.OPTIMIZER: SpanName.OPTIMIZER,
}
"""The parts of a step that are judged."""
OPERATIONS = tuple(sorted(PARTS.values()))


def step_seconds(trace: KinetoTrace) -> dict[int, float]:
    """From the first kernel of a step to that of the next one; by the host's window on a CPU, and where nothing ran."""
    if not trace.on_device:
        return dict(trace.seconds)
    begins = {step: float(work.start[0]) for step, work in trace.steps.items() if len(work.start)}
    following = dict(zip(begins, list(begins.values())[1:], strict=False))
    ends = {step: following.get(step, float(trace.steps[step].end.max())) for step in begins}
    return {step: max(0.0, ends[step] - begins[step]) if step in begins else s for step, s in trace.seconds.items()}


def step_tables(traces: Mapping[int, KinetoTrace]) -> Iterator[StepTable]:
    """One table a step that any rank recorded on a device, in order. The first one is marked as a first step: the
    profiler itself starts in it."""
    on_device = {rank: trace for rank, trace in traces.items() if trace.on_device}
    if not on_device:
        return
    ranks = _rank_table(on_device)
    seconds = [step_seconds(trace) for trace in on_device.values()]
    numbers = sorted({step for trace in on_device.values() for step, work in trace.steps.items() if len(work.start)})
    for step in numbers:
        works = [trace.steps.get(step) for trace in on_device.values()]
        durations = [own.get(step, np.nan) for own in seconds]
        yield StepTable(
            step=step,
            ranks=ranks,
            rows=make_rows(_columns(works)),
            operations=OPERATIONS,
            kinds=np.array([kind_of(name) for name in OPERATIONS], np.int64),
            communicators=(),
            start=np.full(len(ranks), np.nan),
            duration=np.array(durations),
            cpu=np.zeros(len(ranks)),
            phases=frozenset([int(trace_pb2.PHASE_FIRST_STEP)] if step == numbers[0] else []),
            missing=tuple(r for r, work in zip(on_device, works, strict=True) if work is None or not len(work.start)),
        )


def _columns(works: list[Work | None]) -> dict[str, list[float]]:
    """A row for each rank and part."""
    columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    for rank, work in enumerate(works):
        part = np.array(work.part if work is not None else (), np.str_)
        for name, span in PARTS.items():
            if work is None or not (chosen := part == name).any():
                continue
            taken = (work.end - work.start)[chosen]
            row = (rank, OPERATIONS.index(span), 1, taken.sum(), taken.sum(), taken.sum())
            for column, value in zip(_COLUMNS, row, strict=True):
                columns[column].append(float(value))
    return columns


_COLUMNS = ("rank", "operation", "count", "duration", "duration_min", "duration_max")


def without_peers(traces: Mapping[int, KinetoTrace]) -> tuple[int, ...]:
    """Ranks that no other rank can be compared with."""
    signatures = {rank: _signature(trace) for rank, trace in traces.items()}
    counted = Counter(signatures.values())
    return tuple(rank for rank, own in signatures.items() if counted[own] == 1 or not traces[rank].on_device)


def _rank_table(traces: Mapping[int, KinetoTrace]) -> RankTable:
    kind, member = _peers([_signature(trace) for trace in traces.values()])
    zeros, unknown = np.zeros(len(traces), np.int64), np.full(len(traces), "")
    return RankTable(
        rank=np.array(list(traces), np.int64),
        pipeline=kind,
        data=member,
        tensor=zeros,
        context=zeros,
        expert=zeros,
        node=unknown,
        gpu_uuid=unknown,
        device=unknown,
        on_cpu=np.zeros(len(traces), np.bool_),
    )


def _signature(trace: KinetoTrace) -> frozenset[tuple[str, int]]:
    """How often each computing kernel was launched in all steps."""
    counted = Counter(
        name for work in trace.steps.values() for name, part in zip(work.name, work.part, strict=True) if part in PARTS
    )
    return frozenset(counted.items())


def _peers(signatures: list[frozenset[tuple[str, int]]]) -> tuple[Ints, Ints]:
    """Of each rank the number of its class, and its own number within it."""
    classes = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
    seen: Counter[int] = Counter()
    kind, member = [], []
    for signature in signatures:
        number = classes[signature]
        kind.append(number)
        member.append(seen[number])
        seen[number] += 1
    return np.array(kind, np.int64), np.array(member, np.int64)


def breakdown(traces: Mapping[int, KinetoTrace]) -> Breakdown | None:
    """None where no step has any work."""
    parts, steps = np.zeros(4), 0
    taken, calls = defaultdict[str, float](float), Counter[str]()
    for trace in traces.values():
        seconds = step_seconds(trace)
        for step, work in trace.steps.items():
            if not len(work.start):
                continue
            steps += 1
            parts += _parts(work, seconds[step])
            for operator, name, spent in zip(work.operator, work.name, work.end - work.start, strict=True):
                taken[operator or name] += float(spent)
                calls[operator or name] += 1
    if not steps:
        return None
    computing, exposed, idle, communication = (float(value) / steps for value in parts)
    return Breakdown(
        computing=computing,
        exposed_communication=exposed,
        idle=idle,
        communication=communication,
        operators=tuple(
            OperatorTime(name=name, seconds=value / steps, calls=calls[name] / steps)
            for name, value in sorted(taken.items(), key=lambda each: -each[1])
        ),
    )


def _parts(work: Work, seconds: float) -> Floats:
    communicates = np.array([part == kineto.COMMUNICATION for part in work.part])
    busy = union_seconds(work.start, work.end)
    computing = union_seconds(work.start[~communicates], work.end[~communicates])
    communication = union_seconds(work.start[communicates], work.end[communicates])
    return np.array([computing, busy - computing, max(0.0, seconds - busy), communication])


def union_seconds(start: Floats, end: Floats) -> float:
    """How long any of the intervals, sorted by their starts, lasts."""
    if not len(start):
        return 0.0
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
    return float(np.maximum(0.0, end - np.maximum(start, before)).sum())
