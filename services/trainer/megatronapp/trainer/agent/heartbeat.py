"""The heartbeat of a rank, made of what its segment and the kernel tell: it needs nothing of the rank's own doing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.limits import MAX_TIME_NS
from megatronapp.core.trace.values import Communicator, Evaluation, TraceControl
from megatronapp.core.trace.wire import to_proto
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.calls import Call
from megatronapp.trainer.agent.encode import memory_of
from megatronapp.trainer.agent.process import RankProcess
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.v1 import trace_pb2

INTERVAL_SECONDS = 1.0
GOLDEN_RATIO = 0.618034


class BeatClock:
    """When a rank's heartbeats are due: once in INTERVAL_SECONDS, at a moment of its own.

    Ranks are connected, and change phases, all at once. Would they beat at once too, the job would be seen no more
    often than each of them; spread over the interval (by the golden ratio, evenly for any number of ranks) they show
    how it moves in between, and nobody has to take them all in together.
    """

    def __init__(self, rank: int, now_seconds: float) -> None:
        self._next_seconds = now_seconds + INTERVAL_SECONDS * (rank * GOLDEN_RATIO % 1)

    def due(self, now_seconds: float) -> bool:
        """Whether one is due; it counts as beaten then. Those that were missed are not made up for."""
        late_seconds = now_seconds - self._next_seconds
        if late_seconds < 0:
            return False
        self._next_seconds = now_seconds + INTERVAL_SECONDS - late_seconds % INTERVAL_SECONDS
        return True


def heartbeat_of(
    segment: Segment,
    process: RankProcess,
    resident_bytes: int,
    names: SpanNames,
    communicators: Sequence[Communicator],
    evaluations: Sequence[Evaluation],
    control: TraceControl,
    gpu: trace_pb2.GpuTelemetry | None,
    dropped: int,
    *,
    closing: bool,
) -> trace_pb2.Heartbeat:
    """`communicators` and `evaluations`: those since the last heartbeat; `control`: that in force."""
    state = segment.state
    activity, since_ns = _activity(segment, names)
    cpu_ns, wait_ns = process.thread_times()
    return trace_pb2.Heartbeat(
        clock_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        step=max(state.step, 0),
        frontiers=[_frontier(entry, names) for entry in segment.frontiers()],
        dropped=dropped,
        control=to_proto(control),
        gpu=gpu,
        activity=activity,
        activity_since_ns=since_ns,
        communicators=map(to_proto, communicators),
        thread_cpu_ns=cpu_ns,
        thread_wait_ns=wait_ns,
        closing=closing,
        phase=state.phase,  # type: ignore[arg-type]  # a number will do
        memory=memory_of(state, resident_bytes),
        evaluations=map(to_proto, evaluations),
        unpassed_mark_ns=min(segment.unpassed_mark_ns, MAX_TIME_NS),
    )


def _activity(segment: Segment, names: SpanNames) -> tuple[str, int]:
    """Name of the innermost open span and when it began; the segment tells microseconds, without their upper bits."""
    name, since_us = segment.activity
    if not 0 <= name < len(names.names):
        return "", 0
    now_us = time.monotonic_ns() // 1000
    ago_us = (now_us - since_us) % (1 << layout.ACTIVITY_SHIFT)
    return names.names[name], (now_us - ago_us) * 1000


def _frontier(entry: Any, names: SpanNames) -> trace_pb2.Frontier:
    """Of operations that were handed over in order only the oldest incomplete one is under way."""
    enqueued, completed, peer = int(entry["enqueued"]), int(entry["completed"]), int(entry["peer"])
    operation = int(entry["operation"])
    elements, called = _called(entry) if peer < 0 else (0, Call())
    return trace_pb2.Frontier(
        communicator=int(entry["communicator"]),
        enqueued=enqueued,
        started=min(int(entry["started"]), completed + 1),
        completed=completed,
        enqueued_at_ns=int(entry["enqueued_at"]),
        completed_at_ns=int(entry["completed_at"]),
        operation=names.names[operation] if 0 <= operation < len(names.names) else "",
        peer=peer,
        sending=bool(entry["sending"]),
        open=_open(entry) if peer >= 0 else (),
        open_count=int(entry["open"]) if peer >= 0 and entry["open"] >= layout.OPEN_MESSAGES else 0,
        elements=elements,
        data_type=called.data_type,
        root=called.root if called.root >= 0 else None,
    )


def _called(entry: Any) -> tuple[int, Call]:
    """Elements, and what else the members of a communicator agree on, of the collective that the entry tells."""
    if entry["operation"] < 0:
        return 0, Call()
    elements, packed, _ = entry["messages"][0].tolist()
    return elements, Call.unpack(packed)


def _open(entry: npt.NDArray[np.void]) -> list[trace_pb2.OpenMessage]:
    count = min(int(entry["open"]), layout.OPEN_MESSAGES)
    return [
        trace_pb2.OpenMessage(step=step, message=message, posted_at_ns=posted_at_ns)
        for step, message, posted_at_ns in entry["messages"][:count].tolist()
        if message
    ]
