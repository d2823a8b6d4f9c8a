"""Link effect: how long a message or a collective takes when nobody waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace import span_names
from megatronapp.detector.steps import Floats, Ints, StepTable
from megatronapp.v1 import trace_pb2

SENDS: tuple[str, ...] = tuple(span_names.SENDS)


@dataclass(frozen=True, slots=True)
class Messages:
    """What each rank sends to each peer, one entry a (sender, peer, direction)."""

    sender: Ints
    """Global rank."""
    peer: Ints
    direction: Ints
    """Index into SENDS."""
    seconds: Floats
    """The shortest of the step's messages."""
    total: Floats
    """All of them."""
    count: Ints
    bytes: Floats

    def keys(self) -> list[tuple[int, int, int]]:
        return list(zip(self.sender.tolist(), self.peer.tolist(), self.direction.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Collectives:
    """One entry a (communicator, operation) of which every member reported."""

    group: Ints
    """Index into StepTable.communicators."""
    operation: Ints
    seconds: Floats
    """The shortest duration of any member: the transfer, for the last to come does not wait."""
    count: Ints
    bytes: Floats


def how_many(table: StepTable) -> int:
    """Transfers that a step's rows may tell of."""
    rows, names = table.rows, len(table.operations)
    sends = np.isin(rows.operation, [table.operations.index(name) for name in SENDS if name in table.operations])
    shared = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    by_peer = ((rows.rank * names + rows.operation) << 32 | rows.peer)[sends & (rows.peer >= 0)]
    by_group = (rows.communicator * names + rows.operation)[shared]
    return len(np.unique(by_peer)) + len(np.unique(by_group))


def messages(table: StepTable, delayed: npt.NDArray[np.bool_]) -> Messages:
    """delayed: ranks whose messages are left out, as others may be the reason for what they take."""
    rows = table.rows
    direction = np.full(len(rows), -1)
    for number, name in enumerate(SENDS):
        if name in table.operations:
            direction[rows.operation == table.operations.index(name)] = number
    mine = np.flatnonzero((direction >= 0) & (rows.count > 0) & (rows.peer >= 0) & ~delayed[rows.rank])
    code = (rows.rank[mine] << 33) | (rows.peer[mine] << 1) | direction[mine]
    keys, key = np.unique(code, return_inverse=True)
    shortest = np.full(len(keys), np.inf)
    np.minimum.at(shortest, key, rows.duration_min[mine])

    def total(column: Floats | Ints) -> Floats:
        summed: Floats = np.bincount(key, column[mine].astype(np.float64), len(keys)).astype(np.float64)
        return summed

    return Messages(
        sender=table.ranks.rank[keys >> 33],
        peer=(keys >> 1) & 0xFFFFFFFF,
        direction=keys & 1,
        seconds=shortest,
        total=total(rows.duration),
        count=total(rows.count).astype(np.int64),
        bytes=total(rows.bytes),
    )


def sending_seconds(table: StepTable, sent: Messages) -> Floats:
    """Seconds of the step that each rank's messages take at least, one entry a rank: shortest message × messages."""
    places = np.searchsorted(table.ranks.rank, sent.sender)
    return np.bincount(places, sent.seconds * sent.count, minlength=len(table.ranks)).astype(np.float64)


def collectives(table: StepTable) -> Collectives:
    rows = table.rows
    mine = np.flatnonzero(
        (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0) & (rows.count > 0)
    )
    names = len(table.operations)
    code = rows.communicator[mine] * names + rows.operation[mine]
    known = np.bincount(code, minlength=1) > 0
    keys, key = np.flatnonzero(known), np.cumsum(known)[code] - 1
    shortest = np.full(len(keys), np.inf)
    np.minimum.at(shortest, key, rows.duration_min[mine])
    reported = np.bincount(key, minlength=len(keys))
    group = keys // names if len(keys) else keys
    complete = reported >= np.array([len(g.ranks) for g in table.communicators] or [0])[group]
    count = np.bincount(key, rows.count[mine], minlength=len(keys)) / np.maximum(reported, 1)
    size = np.bincount(key, rows.bytes[mine], minlength=len(keys)) / np.maximum(reported, 1)
    return Collectives(
        group=group[complete],
        operation=(keys % max(names, 1))[complete],
        seconds=shortest[complete],
        count=count.astype(np.int64)[complete],
        bytes=size[complete],
    )
