"""StepTables of a recorded job, as the streaming detector would have seen its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatronapp.core.trace.span_names import SpanName, kind_of
from megatronapp.core.trace.values import SpanKind
from megatronapp.detector.formats.bytedance import Trace
from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.steps import Floats, Group, Ints, Microbatches, RankTable, StepTable
from megatronapp.detector.whatif import recording as op
from megatronapp.detector.whatif.recording import host_seconds, own_seconds, recording_graph

NAMES: dict[str, SpanName] = {
    op.FORWARD: SpanName.FORWARD,
    op.BACKWARD: SpanName.BACKWARD,
    op.OPTIMIZER: SpanName.OPTIMIZER,
    op.GC: SpanName.GC,
    "forward-send": SpanName.FORWARD_SEND,
    "forward-recv": SpanName.FORWARD_RECV,
    "backward-send": SpanName.BACKWARD_SEND,
    "backward-recv": SpanName.BACKWARD_RECV,
    op.PARAMS: SpanName.ALL_GATHER,
    op.GRADS: SpanName.REDUCE_SCATTER,
    op.SEPARATE_GRADS: SpanName.ALL_REDUCE,
    op.EMBEDDING: SpanName.ALL_REDUCE,
    op.LAYERNORM: SpanName.ALL_REDUCE,
    op.CLIP: SpanName.ALL_REDUCE,
}
"""The recorded types in our own names of spans (docs/spans.md)."""

OPERATIONS = tuple(sorted(set(NAMES.values())))
KINDS = np.array([kind_of(name) for name in OPERATIONS])


@dataclass(frozen=True, slots=True)
class _Row:
    """The operations of a stage that make one row of each of its ranks, and what is the same for it in all steps."""

    operations: list[int]
    name: int
    chunk: int
    rank: Ints
    """(replicas,): index of the rank in the RankTable."""
    communicator: Ints
    peer: Ints


def step_tables(trace: Trace) -> Iterator[StepTable]:
    """One table per recorded step, in order; a rank of it is a worker, by its lowest global rank.

    The recorded duration of a message or collective says how long its members waited for each other, which depends on
    all that went before; rows hold their own time instead, from the last member's arrival on. So a rank's step lasts as
    long as what it did itself, and its host's delays.
    A worker without any operation in a step is among the step's missing ranks. Raises DataError.
    """
    recording = trace.recording
    graph = recording_graph(recording)
    taken, late = np.maximum(own_seconds(recording, graph), 0.0), host_seconds(recording, graph)
    ranks, position = _ranks(trace)
    groups = _Groups(trace)
    rows = _rows(trace, position, groups)
    microbatches = {o.microbatch for o in recording.operations if o.key.type == op.FORWARD}
    chunks = {o.chunk for o in recording.operations if o.key.type == op.FORWARD}
    for index, step in enumerate(recording.steps):
        columns = _columns(rows, taken[:, index])
        busy = np.bincount(columns["rank"].astype(np.int64), columns["duration"], minlength=len(ranks))
        seconds = np.where(busy > 0, busy + _on_ranks(trace, position, late[:, index]), np.nan)
        yield StepTable(
            step=int(step),
            ranks=ranks,
            rows=make_rows(columns),
            operations=OPERATIONS,
            kinds=KINDS,
            communicators=tuple(groups.table),
            start=np.full(len(ranks), np.nan),
            duration=seconds,
            cpu=np.zeros(len(ranks)),
            microbatches=max(1, len(microbatches)),
            virtual_stages=max(1, len(chunks)),
            detail=_detail(trace, recording.duration[:, index]),
            missing=tuple(int(rank) for rank in ranks.rank[np.isnan(seconds)]),
        )


def _on_ranks(trace: Trace, position: Ints, seconds: Floats) -> Floats:
    """(ranks,): sum of seconds (operations × replicas) over the operations of each rank."""
    total = np.zeros(int(position.max()) + 1)
    for operation, values in zip(trace.recording.operations, seconds, strict=True):
        where = position[operation.key.stage, trace.recording.replicas]
        total[where[where >= 0]] += values[where >= 0]
    return total


def _ranks(trace: Trace) -> tuple[RankTable, Ints]:
    """The workers by global rank, and where each (stage, replica) stands among them, −1: nowhere."""
    stage, data = np.nonzero(trace.rank >= 0)
    order = np.argsort(trace.rank[stage, data])
    stage, data = stage[order], data[order]
    position = np.full(trace.rank.shape, -1)
    position[stage, data] = np.arange(len(stage))
    zeros, unknown = np.zeros_like(stage), np.full(len(stage), "")
    table = RankTable(
        rank=trace.rank[stage, data],
        pipeline=stage,
        data=data,
        tensor=zeros,
        context=zeros,
        expert=zeros,
        node=unknown,
        gpu_uuid=unknown,
        device=unknown,
        on_cpu=np.zeros(len(stage), dtype=np.bool_),
    )
    return table, position


class _Groups:
    """Communicators of the job: data-parallel by stage, embedding by replica, tensor by worker, and the world."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.table: list[Group] = []
        self._index: dict[Group, int] = {}

    def of(self, type_: str, stage: int, replica: int) -> int:
        """Index of the communicator that a worker's operation of this type runs in; −1: none."""
        if kind_of(NAMES[type_]) is not SpanKind.COLLECTIVE:
            return -1
        rank = self._trace.rank
        if type_ in op.ACROSS_REPLICAS:
            return self._number("dp", rank[stage])
        if type_ == op.EMBEDDING:
            return self._number("embd", rank[sorted({0, len(rank) - 1}), replica])
        if type_ == op.LAYERNORM:
            return self._number("tp", rank[stage, replica] + np.arange(self._trace.meta.ranks_per_worker))
        return self._number("world", rank.ravel())

    def _number(self, kind: str, ranks: Ints) -> int:
        members = tuple(sorted(int(rank) for rank in ranks if rank >= 0))
        group = Group(f"{kind}:{'-'.join(map(str, members))}", kind, members)
        if group not in self._index:
            self._index[group] = len(self.table)
            self.table.append(group)
        return self._index[group]


def _rows(trace: Trace, position: Ints, groups: _Groups) -> list[_Row]:
    members: defaultdict[tuple[int, str, int], list[int]] = defaultdict(list)
    for index, operation in enumerate(trace.recording.operations):
        chunk = operation.chunk if operation.key.type in (op.FORWARD, op.BACKWARD) else 0
        members[operation.key.stage, operation.key.type, chunk].append(index)
    replicas = trace.recording.replicas.tolist()
    return [
        _Row(
            operations=indices,
            name=OPERATIONS.index(NAMES[type_]),
            chunk=chunk,
            rank=position[stage, trace.recording.replicas],
            communicator=np.array([groups.of(type_, stage, replica) for replica in replicas]),
            peer=np.array([_peer(trace, type_, stage, replica) for replica in replicas]),
        )
        for (stage, type_, chunk), indices in members.items()
    ]


def _columns(rows: list[_Row], duration: Floats) -> dict[str, Floats]:
    """Columns of one step's rows; duration: (operations, replicas)."""
    columns: defaultdict[str, list[Floats]] = defaultdict(list)
    for row in rows:
        taken = duration[row.operations]
        count = (~np.isnan(taken)).sum(axis=0)
        here = count > 0
        for name, values in (
            ("rank", row.rank),
            ("operation", np.full(len(count), row.name)),
            ("chunk", np.full(len(count), row.chunk)),
            ("communicator", row.communicator),
            ("peer", row.peer),
            ("count", count),
            ("duration", np.nansum(taken, axis=0)),
            ("duration_min", np.fmin.reduce(taken)),
            ("duration_max", np.fmax.reduce(taken)),
        ):
            columns[name].append(values[here])
    return {name: np.concatenate(values) for name, values in columns.items()}


def _peer(trace: Trace, type_: str, stage: int, replica: int) -> int:
    """Global rank at the other end of a message, −1 for anything else."""
    if type_ not in op.MESSAGES:
        return -1
    towards = 1 if type_ in ("forward-send", "backward-recv") else -1
    return int(trace.rank[(stage + towards) % len(trace.rank), replica])


def _detail(trace: Trace, duration: Floats) -> Microbatches | None:
    """Forward plus backward seconds of each microbatch on each stage; nan where a stage did not record it."""
    compute = [
        (index, o.key.stage, o.microbatch)
        for index, o in enumerate(trace.recording.operations)
        if o.key.type in (op.FORWARD, op.BACKWARD) and o.microbatch >= 0
    ]
    if not compute:
        return None
    index, stage, microbatch = np.array(compute).T
    replicas = len(trace.recording.replicas)
    total = np.zeros((len(trace.rank), replicas, microbatch.max() + 1))
    for row, (at, of) in zip(index, zip(stage, microbatch, strict=True), strict=True):
        total[at, :, of] += duration[row]
    return Microbatches(
        replica=np.repeat(trace.recording.replicas, total.shape[2]), compute=total.reshape(len(trace.rank), -1)
    )
