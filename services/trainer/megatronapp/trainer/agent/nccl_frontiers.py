"""What NCCL tells of its communicators, as the frontiers of a heartbeat. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from megatronapp.core.trace.limits import MAX_COUNT, MAX_NAME, MAX_WORLD
from megatronapp.trainer.agent.operations import Direction, Enqueued, Lane
from megatronapp.v1 import trace_pb2

MAX_LANES_TOLD = 4096
"""Of a heartbeat: communicators first, in the order in which they were made."""
TYPES = {
    "ncclInt8": "int8",
    "ncclUint8": "uint8",
    "ncclInt32": "int32",
    "ncclUint32": "uint32",
    "ncclInt64": "int64",
    "ncclUint64": "uint64",
    "ncclFloat16": "float16",
    "ncclFloat32": "float32",
    "ncclFloat64": "float64",
    "ncclBfloat16": "bfloat16",
    "ncclFloat8e4m3": "float8_e4m3fn",
    "ncclFloat8e5m2": "float8_e5m2",
}
"""torch's names of NCCL's types."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=All)(?=to)")


def frontiers_of(lanes: Iterable[Lane]) -> list[trace_pb2.Frontier]:
    """Those that can be compared with other members'; also what is not used yet, of which the others wait to hear."""
    used = sorted(filter(_comparable, lanes), key=lambda lane: lane.direction is not Direction.NONE)
    return [frontier for lane in used[:MAX_LANES_TOLD] for frontier in _frontier(lane)]


def span_name(function: str) -> str:
    """AllReduce and AlltoAll, as NCCL has them, are all_reduce and all_to_all in our records."""
    return _WORD.sub("_", function).lower()[:MAX_NAME]


def _comparable(lane: Lane) -> bool:
    """NCCL numbers no messages: over a pause of the recording their numbers are not those of the other end."""
    if lane.closed or not 0 <= lane.rank < lane.ranks <= MAX_WORLD or lane.ranks < 2:
        return False
    if lane.direction is Direction.NONE:
        return lane.peer < 0
    return lane.switches <= 1 and 0 <= lane.peer < lane.ranks


def _frontier(lane: Lane) -> Iterator[trace_pb2.Frontier]:
    """None where the counts contradict one another: the rank may have been killed while it wrote them."""
    enqueued, completed = lane.enqueued, lane.completed
    if not completed <= enqueued <= MAX_COUNT:
        return
    under_way = lane.oldest if enqueued > completed else None
    latest = under_way or lane.newest
    collective = lane.direction is Direction.NONE
    yield trace_pb2.Frontier(
        enqueued=enqueued,
        started=min(max(lane.started, completed), enqueued),
        completed=completed,
        enqueued_at_ns=_time(lane.enqueued_ns),
        completed_at_ns=_time(lane.completed_ns),
        operation=span_name(under_way.operation) if under_way else "",
        peer=-1,
        sending=lane.direction is Direction.SENDS,
        elements=min(under_way.count, MAX_COUNT) if under_way and collective else 0,
        data_type=TYPES.get(under_way.type, "") if under_way and collective else "",
        root=_root(under_way, lane) if under_way and collective else None,
        nccl=trace_pb2.NcclSeat(
            hash=lane.communicator,
            size=lane.ranks,
            place=lane.rank,
            timed=latest is None or latest.timed,
            peer=None if collective else lane.peer,
        ),
    )


def _root(operation: Enqueued, lane: Lane) -> int | None:
    """NCCL names one also where none is: in operations from which all receive alike."""
    rooted = operation.operation in ("Broadcast", "Reduce")
    return operation.root if rooted and 0 <= operation.root < lane.ranks else None


def _time(ns: int) -> int:
    return ns if 0 <= ns < 1 << 62 else 0
