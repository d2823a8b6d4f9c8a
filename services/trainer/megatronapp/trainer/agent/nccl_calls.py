"""Which of NCCL's operations a rank's own hook has called: by when, of which communicator, which function, how large.
Pure.

A hook knows where the operation stands in the step, and NCCL when it ran. The rank's calls follow one another, so that
an operation belongs to the newest call that can have made it: by then nothing was called of which NCCL has not told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from megatronapp.core.trace.span_names import RECEIVES, SENDS, SpanName
from megatronapp.core.trace.values import SpanKind
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.operations import Direction, Enqueued, Lane
from megatronapp.trainer.agent.span_table import Ints
from megatronapp.trainer.agent.spans import SpanNames

Groups = Mapping[int, tuple[int, ...]]
"""Global ranks of a communicator, in its order, by its number in the rank's table."""

FUNCTIONS: Mapping[str, frozenset[str]] = {
    SpanName.ALL_REDUCE: frozenset({"AllReduce"}),
    SpanName.ALL_GATHER: frozenset({"AllGather", "Broadcast"}),  # of unequal parts torch makes broadcasts
    SpanName.REDUCE_SCATTER: frozenset({"ReduceScatter", "Reduce"}),
    SpanName.BROADCAST: frozenset({"Broadcast"}),
    SpanName.ALL_TO_ALL: frozenset({"Send", "Recv", "AlltoAll", "AllToAll"}),
    SpanName.BARRIER: frozenset({"AllReduce"}),
    **dict.fromkeys(SENDS, frozenset({"Send"})),
    **dict.fromkeys(RECEIVES, frozenset({"Recv"})),
}
"""NCCL's, of which the operations of torch.distributed consist."""
TYPE_BYTES = {
    **dict.fromkeys(("ncclFloat16", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclUint32", "ncclFloat32"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64"), 8),
}
"""Of the types of more than one byte."""
OF_ALL_MEMBERS = frozenset({"AllGather", "ReduceScatter"})
"""NCCL counts what one member has."""
LOOKED_AT = 64
"""Newest calls that an operation may belong to."""


def size_of(called: Enqueued, lane: Lane) -> int:
    """Bytes of the larger side."""
    members = lane.ranks if called.operation in OF_ALL_MEMBERS else 1
    return called.count * TYPE_BYTES.get(called.type, 1) * members


class Calls:
    """Of one step, as its rows tell them. `rows`: their place in the step's table."""

    def __init__(self, table: Ints, names: SpanNames, groups: Groups, rank: int) -> None:
        column = dict(zip(layout.COLUMNS, table, strict=True))
        kinds = names.kinds[column["name"]]
        begun = np.where(column["enqueue"] > 0, column["enqueue"], column["issue"])
        rows = np.flatnonzero((kinds == SpanKind.COLLECTIVE) | (kinds == SpanKind.P2P))
        self.rows = rows[np.argsort(begun[rows], kind="stable")]
        self._begun: list[int] = begun[self.rows].tolist()
        self._over: list[int] = (column["end"] - column["behind"])[self.rows].tolist()
        self._names = [names.names[name] for name in column["name"][self.rows].tolist()]
        self._communicators: list[int] = column["communicator"][self.rows].tolist()
        self._peers: list[int] = column["peer"][self.rows].tolist()
        self._left: list[int] = column["bytes"][self.rows].tolist()
        self._groups, self._rank = groups, rank

    def take(self, called: Enqueued, lane: Lane) -> int | None:
        """The place in `rows` of the call that has made an operation."""
        newest = bisect_right(self._begun, called.at_ns)
        size = size_of(called, lane)
        best: int | None = None
        for at in range(newest - 1, max(newest - 1 - LOOKED_AT, -1), -1):
            if best is not None and self._begun[at] < self._begun[best]:
                break
            if called.at_ns <= self._over[at] and self._fits(at, called, lane, size):
                best = at  # of those that were posted at once the first
        if best is not None:
            self._count(best, size)
        return best

    def communicator(self, at: int) -> int:
        return self._communicators[at]

    def _fits(self, at: int, called: Enqueued, lane: Lane, size: int) -> bool:
        name, ranks = self._names[at], self._groups.get(self._communicators[at], ())
        if called.operation not in FUNCTIONS.get(name, ()) or not ranks:
            return False
        if name in SENDS or name in RECEIVES:
            direction = Direction.SENDS if name in SENDS else Direction.RECEIVES
            return (
                lane.direction is direction
                and joins(lane, ranks, self._rank, self._peers[at])
                and size <= self._left[at]
            )
        if not sits_in(lane, ranks, self._rank):
            return False
        if name == SpanName.ALL_TO_ALL:  # a message for each pair
            return True
        return self._left[at] >= (0 if name == SpanName.BARRIER else size)

    def _count(self, at: int, size: int) -> None:
        if self._names[at] == SpanName.BARRIER:
            self._left[at] = -1
        elif self._names[at] != SpanName.ALL_TO_ALL:
            self._left[at] -= size


def sits_in(lane: Lane, ranks: tuple[int, ...], rank: int) -> bool:
    """Whether a communicator can be the one of these members."""
    return lane.ranks == len(ranks) and 0 <= lane.rank < len(ranks) and ranks[lane.rank] == rank


def joins(lane: Lane, ranks: tuple[int, ...], rank: int, peer: int) -> bool:
    """The same of messages with one of them: torch has a communicator of two for messages outside of batches."""
    if sits_in(lane, ranks, rank) and 0 <= lane.peer < len(ranks) and ranks[lane.peer] == peer:
        return True
    return lane.ranks == 2 and peer in ranks and (lane.rank, lane.peer) == ((0, 1) if rank < peer else (1, 0))
