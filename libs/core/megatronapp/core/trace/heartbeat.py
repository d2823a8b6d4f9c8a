"""Whether a heartbeat can be true. Of all messages there are most heartbeats, and of one on the wire the frontiers are
read, and checked, only when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter

from megatronapp.core.trace import limits
from megatronapp.core.trace.checks import (
    CONTROL,
    MEMORY,
    check_communicators,
    check_count,
    check_parts,
    check_phase,
    check_texts,
    times,
    up_to,
)
from megatronapp.core.trace.message_id import MAX_PACKED
from megatronapp.core.trace.nccl_tallies import check_ports, check_seat
from megatronapp.core.trace.ranges import Ranges
from megatronapp.v1 import trace_pb2

AnyHeartbeat = trace_pb2.Heartbeat | trace_pb2.SentHeartbeat


def check_heartbeat(beat: AnyHeartbeat) -> None:
    """Raises ImplausibleError. What the frontiers of a SentHeartbeat tell is not looked at."""
    if not _is_ordinary(beat):
        _check_fields(beat)
    _check_activity(beat.activity)
    if isinstance(beat, trace_pb2.Heartbeat):
        if not _rest_is_ordinary(beat):
            _check_rest(beat)
        _check_frontiers(list(beat.frontiers))


def _is_ordinary(beat: AnyHeartbeat) -> bool:
    """Whether a heartbeat tells nothing that is seldom told, and _check_fields finds nothing wrong with it: the same
    written out, as nearly all of them are such."""
    return (
        _heartbeat_holds(beat)
        and 0 <= beat.phase <= limits.MAX_PHASE
        and len(beat.frontiers) <= limits.MAX_FRONTIERS
        and not (beat.HasField("stack") or beat.communicators)
        and not (beat.HasField("gpu") and not _gpu_holds(beat.gpu))
    )


def _rest_is_ordinary(beat: trace_pb2.Heartbeat) -> bool:
    """The same of _check_rest."""
    return (
        _rest_holds(beat)
        and not beat.evaluations
        and not (beat.HasField("control") and not CONTROL.hold(beat.control))
        and not (beat.HasField("memory") and not MEMORY.hold(beat.memory))
    )


def _check_rest(beat: trace_pb2.Heartbeat) -> None:
    """What a SentHeartbeat does not have, but for what frontiers tell. Raises ImplausibleError."""
    _REST.check(beat)
    check_parts(beat, _PARTS)
    if evaluations := beat.evaluations:
        check_count("evaluations", len(evaluations), limits.MAX_EVALUATIONS)
        _EVALUATION.check_all(evaluations)
        for evaluation in evaluations:
            check_texts("evaluation", [evaluation.split])


def _check_fields(beat: AnyHeartbeat) -> None:
    """What both have, but for the activity. Raises ImplausibleError."""
    _HEARTBEAT.check(beat)
    check_phase(beat.phase)
    check_count("frontiers", len(beat.frontiers), limits.MAX_FRONTIERS)
    if beat.HasField("gpu"):
        _GPU.check(beat.gpu)
    if beat.HasField("stack"):
        _STACK.check(beat.stack)
        check_count("characters of a stack", len(beat.stack.text), limits.MAX_STACK)
        check_texts("stack", beat.stack.text.split("\n"), limits.MAX_STACK)
        check_texts("flight recorder", beat.stack.recorder.split("\n"), limits.MAX_RECORDER)
        check_count("characters of a flight recorder", len(beat.stack.recorder), limits.MAX_RECORDER)
        check_texts("report of RAS", beat.stack.ras.split("\n"), limits.MAX_RAS)
        check_count("characters of a report of RAS", len(beat.stack.ras), limits.MAX_RAS)
        check_ports(beat.stack.ports)
        check_texts("state", [beat.stack.state, beat.stack.source], limits.MAX_NAME)
    if communicators := beat.communicators:
        check_communicators(communicators)


@lru_cache(maxsize=limits.MAX_KEPT_NAMES)
def _check_activity(activity: str) -> None:
    """Ranks tell the same few again and again."""
    check_texts("activity", [activity], limits.MAX_NAME)


def read_frontiers(sent: Iterable[bytes]) -> list[trace_pb2.Frontier]:
    """Those of a SentHeartbeat. Raises DecodeError for what is none, and ImplausibleError for what can't be true."""
    frontiers = list(map(trace_pb2.Frontier.FromString, sent))
    _check_frontiers(frontiers)
    return frontiers


def _check_frontiers(frontiers: Sequence[trace_pb2.Frontier]) -> None:
    check_count("frontiers", len(frontiers), limits.MAX_FRONTIERS)
    _FRONTIER.check_all(frontiers)
    check_texts("operation", list(map(_OPERATION, frontiers)), limits.MAX_NAME)
    check_texts("data type", list(map(_DATA_TYPE, frontiers)), limits.MAX_NAME)
    for seat in (frontier.nccl for frontier in frontiers if frontier.HasField("nccl")):
        check_seat(seat)
    for opened in filter(len, map(_OPEN_MESSAGES, frontiers)):
        check_count("open messages of a pair", len(opened), limits.MAX_OPEN_MESSAGES)
        _OPEN.check_all(opened)


_OPERATION, _DATA_TYPE, _OPEN_MESSAGES = attrgetter("operation"), attrgetter("data_type"), attrgetter("open")
_TIME_NS, _COUNT = limits.MAX_TIME_NS, limits.MAX_COUNT
_STEP, _DROPPED = limits.MAX_STEP, limits.MAX_DROPPED


def _heartbeat_holds(beat: AnyHeartbeat) -> bool:
    return (
        beat.step <= _STEP
        and 0 <= beat.thread_cpu_ns <= _TIME_NS
        and 0 <= beat.thread_wait_ns <= _TIME_NS
        and 0 <= beat.unpassed_mark_ns <= _TIME_NS
        and -_TIME_NS <= beat.clock_ns <= _TIME_NS
    )  # fmt: skip


def _rest_holds(beat: trace_pb2.Heartbeat) -> bool:
    return (
        beat.dropped <= _DROPPED
        and beat.operations_lost <= _DROPPED
        and 0 <= beat.unix_ns <= _TIME_NS
        and -_TIME_NS <= beat.activity_since_ns <= _TIME_NS
    )  # fmt: skip


def _gpu_holds(gpu: trace_pb2.GpuTelemetry) -> bool:
    return gpu.ecc_volatile_uncorrected <= _COUNT and gpu.pcie_replays <= _COUNT


def _frontier_holds(frontier: trace_pb2.Frontier) -> bool:
    return (
        frontier.communicator <= limits.MAX_COMMUNICATORS
        and frontier.enqueued <= _COUNT
        and frontier.started <= _COUNT
        and frontier.completed <= _COUNT
        and -_TIME_NS <= frontier.enqueued_at_ns <= _TIME_NS
        and -_TIME_NS <= frontier.completed_at_ns <= _TIME_NS
        and -1 <= frontier.peer < limits.MAX_WORLD
        and frontier.elements <= _COUNT
        and frontier.open_count <= _COUNT
        and frontier.root < limits.MAX_WORLD
    )


def _open_message_holds(message: trace_pb2.OpenMessage) -> bool:
    return (
        message.step <= limits.MAX_STEP
        and message.message <= MAX_PACKED
        and -_TIME_NS <= message.posted_at_ns <= _TIME_NS
    )


_HEARTBEAT = Ranges(
    "heartbeat",
    *up_to(limits.MAX_STEP, "step"),
    *up_to(limits.MAX_TIME_NS, "thread_cpu_ns", "thread_wait_ns", "unpassed_mark_ns"),
    *times("clock_ns"),
    hold=_heartbeat_holds,
)
_REST = Ranges(
    "heartbeat",
    *up_to(limits.MAX_DROPPED, "dropped", "operations_lost"),
    *up_to(limits.MAX_TIME_NS, "unix_ns"),
    *times("activity_since_ns"),
    hold=_rest_holds,
)
_GPU = Ranges("gpu", *up_to(limits.MAX_COUNT, "ecc_volatile_uncorrected", "pcie_replays"), hold=_gpu_holds)
_FRONTIER = Ranges(
    "frontier",
    *up_to(limits.MAX_COMMUNICATORS, "communicator"),
    *up_to(limits.MAX_COUNT, "enqueued", "started", "completed", "elements"),
    *up_to(limits.MAX_WORLD - 1, "root"),
    *times("enqueued_at_ns", "completed_at_ns"),
    ("peer", -1, limits.MAX_WORLD - 1),
    hold=_frontier_holds,
)
_OPEN = Ranges(
    "open message",
    *up_to(limits.MAX_STEP, "step"),
    *up_to(MAX_PACKED, "message"),
    *times("posted_at_ns"),
    hold=_open_message_holds,
)
_STACK = Ranges("stack", *times("clock_ns"))
_PARTS = {"control": CONTROL, "memory": MEMORY}
_EVALUATION = Ranges("evaluation", *up_to(limits.MAX_STEP, "step"), *up_to(limits.MAX_COUNT, "microbatches"))
