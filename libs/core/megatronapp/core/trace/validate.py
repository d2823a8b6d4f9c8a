"""Whether a message can be true: every field is hostile, also of a message that is well-formed.

Intake refuses what fails here, and whoever reads the bus checks again, since a bus holds what older services wrote.
Floats may be anything: a loss that is no number is news, and is shown as such.
The bounds and their reasons are in limits.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.trace import limits
from megatronapp.core.trace.checks import (
    CONTROL,
    MEMORY,
    OPEN_ENUM,
    check_communicators,
    check_count,
    check_parts,
    check_phase,
    check_texts,
    times,
    up_to,
)
from megatronapp.core.trace.columns import (
    NO_COLUMNS,
    NOTHING,
    SPAN_DTYPES,
    SUMMARY_DTYPES,
    Column,
    Columns,
    Data,
    Layout,
    span_columns,
    summary_columns,
)
from megatronapp.core.trace.extents import Extent, Ints
from megatronapp.core.trace.heartbeat import check_heartbeat
from megatronapp.core.trace.message_id import MAX_PACKED
from megatronapp.core.trace.nccl_tallies import check_ports, check_tallies
from megatronapp.core.trace.ranges import ImplausibleError, Ranges
from megatronapp.core.trace.values import Identity
from megatronapp.v1 import trace_pb2

_WHO = attrgetter("run", "job", "attempt", "rank", "incarnation")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}/[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def check_identity(identity: trace_pb2.Identity) -> None:
    """Raises ImplausibleError for what can't name a rank; names become folders, so they are plain."""
    _check_names(identity.run, identity.job)
    if not 1 <= identity.attempt <= limits.MAX_ATTEMPT:
        raise _identity(f"attempt counts from 1 to {limits.MAX_ATTEMPT}; set MEGATRONAPP_ATTEMPT")
    if identity.rank >= limits.MAX_WORLD:
        raise _identity(f"rank {identity.rank} is more than {limits.MAX_WORLD - 1}")


@lru_cache(maxsize=limits.MAX_KEPT_NAMES)
def _check_names(run: str, job: str) -> None:
    if not _RUN.fullmatch(run):
        raise _identity("run must be letters, digits, '.', '_' or '-', at most 128; set MEGATRONAPP_RUN_ID")
    if run in limits.RESERVED_RUNS:
        raise _identity(f"run {run!r} is a name of the store's own; set MEGATRONAPP_RUN_ID to another")
    if not _JOB.fullmatch(job):
        raise _identity("job must be <namespace>/<name>; set MEGATRONAPP_JOB")


def check_message(message: trace_pb2.TraceMessage) -> None:
    """Raises DataError for a message of a rank that can't be true; an ImplausibleError tells the reason in a word."""
    understand(message)


def check_fields(message: trace_pb2.TraceMessage) -> None:
    """What check_message checks of a summary or a batch, but for its names and columns. Raises DataError."""
    if message.HasField("summary"):
        _summary_fields(message.summary)
    else:
        _batch_fields(message.batch)


def implausible_columns(extents: Mapping[str, Extent]) -> npt.NDArray[np.bool_]:
    """Of messages: those whose columns check_message would refuse."""
    names, least, most = _column_ranges(tuple(extents))
    low, high = (np.array(each) for each in zip(*(extents[name] for name in names), strict=True))
    implausible: npt.NDArray[np.bool_] = np.logical_or.reduce((low < least) | (high > most), axis=0)
    return implausible


def check_rank_message(message: trace_pb2.RankMessage) -> None:
    """The same for a message on the bus, where one that tells of a lost rank has no body. Raises DataError."""
    check_identity(message.identity)
    check_sent(message.identity, message)


def check_sent(
    sender: Identity | trace_pb2.Identity, message: trace_pb2.RankMessage | trace_pb2.SentMessage
) -> tuple[str | None, Columns]:
    """The same for a message whose sender was checked, but for what a SentHeartbeat's frontiers tell; returns its kind,
    None where it has no body, and its columns, as `understand` does. Raises DataError."""
    body = message.message
    if not _rank_message_holds(message):
        _RANK_MESSAGE.check(message)
    kind: str | None = body.WhichOneof("body")
    if kind == "heartbeat" and body.seq:
        check_heartbeat(body.heartbeat)
        return kind, NO_COLUMNS
    if kind is None and message.lost:
        return None, NO_COLUMNS
    if kind == "hello" and body.hello.HasField("identity") and _WHO(body.hello.identity) != _WHO(sender):
        raise _identity("a Hello of another rank than the message's sender")
    return _understand(body, kind)


def understand(message: trace_pb2.TraceMessage, beside: Mapping[str, Data] = NOTHING) -> tuple[str, Columns]:
    """The message's kind and its columns, which have no rows unless it is a batch or a summary. beside: columns of a
    batch that are not in the message.

    Raises DataError as check_message does.
    """
    kind = message.WhichOneof("body")
    if kind == "hello":
        check_identity(message.hello.identity)
    return _understand(message, kind, beside)


def _understand(
    message: trace_pb2.TraceMessage | trace_pb2.SentTraceMessage,
    kind: str | None,
    beside: Mapping[str, Data] = NOTHING,
) -> tuple[str, Columns]:
    if kind is None:
        raise DataError("a message without a body; the sender is newer than this service")
    if kind == "bundle":
        raise DataError("a bundle stands on a stream only, and for itself")
    _check_number(message.seq, kind)
    if kind == "hello":
        _hello(message.hello)
    elif kind == "heartbeat":
        check_heartbeat(message.heartbeat)
    else:
        return kind, _batch(message.batch, beside) if kind == "batch" else _summary(message.summary)
    return kind, NO_COLUMNS


def _check_number(seq: int, kind: str) -> None:
    if (seq == 0) != (kind == "hello"):
        raise DataError(f"seq {seq} in a {kind}; it counts from 1; only Hello has 0")


def check_control(control: trace_pb2.TraceControl) -> None:
    """Raises ImplausibleError. A field that is 0 was not set."""
    CONTROL.check(control)


def check_layout(place: trace_pb2.Placement, microbatches: int) -> None:
    """Raises ImplausibleError."""
    _PLACEMENT.check(place)
    _SIZES.check(place.sizes)
    passes = math.prod(max(1, n) for n in (microbatches, place.sizes.virtual_pipeline, place.sizes.pipeline))
    if passes > limits.MAX_STEP_PASSES:
        raise ImplausibleError(
            "number", f"microbatches x virtual_pipeline x pipeline is {passes}; at most {limits.MAX_STEP_PASSES}"
        )


def _hello(hello: trace_pb2.Hello) -> None:
    place, schedule = hello.placement, hello.schedule
    _HELLO.check(hello)
    _SCHEDULE.check(schedule)
    check_layout(place, schedule.microbatches)
    if abs(place.host_unix_ns - place.host_clock_ns) > limits.MAX_TIME_NS:
        raise ImplausibleError("number", "host_unix_ns and host_clock_ns are further apart than any clocks can be")
    check_texts("node", [place.node])
    check_texts("gpu_uuid", [place.gpu_uuid])
    check_texts("device", [place.device_id, place.device_name])
    check_texts("role", [place.role])
    check_texts("schedule", [schedule.name])
    check_communicators(hello.communicators)
    _recipe(hello.recipe)


def _batch(batch: trace_pb2.TraceBatch, beside: Mapping[str, Data]) -> Columns:
    _batch_fields(batch)
    _names(batch.names)
    columns = span_columns(batch, beside=beside)
    if columns.rows and columns.sent("start_ns") is None:
        raise DataError(f"a batch of {columns.rows} spans without start_ns")
    _check_columns(columns)
    return columns


def _batch_fields(batch: trace_pb2.TraceBatch) -> None:
    _BATCH.check(batch)
    check_communicators(batch.communicators)


def _summary(summary: trace_pb2.StepSummary) -> Columns:
    _summary_fields(summary)
    columns = summary_columns(summary, _names(summary.names))
    if columns.rows and columns.empty:
        raise ImplausibleError("rows", f"a summary of {columns.rows} rows without any column")
    _check_columns(columns)
    return columns


def _summary_fields(summary: trace_pb2.StepSummary) -> None:
    _SUMMARY.check(summary)
    check_communicators(summary.communicators)
    if len(summary.order) > limits.MAX_ORDER_BYTES:
        raise ImplausibleError(
            "order", f"an order of {len(summary.order)} bytes in a step; at most {limits.MAX_ORDER_BYTES}"
        )
    if len(summary.phases) > limits.MAX_PHASES:
        raise ImplausibleError("phases", f"{len(summary.phases)} phases in a step; at most {limits.MAX_PHASES}")
    for phase in summary.phases:
        check_phase(phase)
    check_parts(summary, _SUMMARY_PARTS)
    if tallies := summary.nccl:
        check_tallies(tallies)
    if ports := summary.ports:
        check_ports(ports)


def _recipe(recipe: trace_pb2.Recipe) -> None:
    if recipe.ByteSize() > limits.MAX_RECIPE_BYTES:
        raise ImplausibleError("text", f"a recipe of more than {limits.MAX_RECIPE_BYTES >> 10} KiB")
    for what, settings in (("setting", recipe.settings), ("version", recipe.versions)):
        check_count(f"{what}s", len(settings), limits.MAX_SETTINGS)
        check_texts(what, [each.name for each in settings])
        check_texts(f"value of a {what}", [each.value for each in settings], limits.MAX_SETTING)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """The same names, of which those of one table are kept once."""
    check_count("names", len(names), limits.MAX_NAMES)
    few = len(names) <= limits.MAX_KEPT_TABLE
    return _plausible_names(tuple(names)) if few else _plausible_names.__wrapped__(tuple(names))


@lru_cache(maxsize=limits.MAX_KEPT_TABLES)
def _plausible_names(names: tuple[str, ...]) -> tuple[str, ...]:
    check_texts("name", names, limits.MAX_NAME)
    return names


def _check_columns(columns: Columns) -> None:
    for name in _in_question(columns.layout):
        if (sent := columns.sent(name)) is not None:
            _column(name, sent, *_column_range(name))


@lru_cache(maxsize=1024)
def _in_question(layout: Layout) -> tuple[str, ...]:
    """Only what is sent wide can be out of the range of a time or a count."""
    return tuple(name for name, width in layout.widths if width == 8 or (width == 4 and name in _WIDE_32))


def _column_range(name: str) -> tuple[int, int]:
    return _WIDE_32.get(name) or _WIDE.get(name) or (0, limits.MAX_COUNT)


@lru_cache(maxsize=64)
def _column_ranges(names: tuple[str, ...]) -> tuple[tuple[str, ...], Ints, Ints]:
    """Those columns that can be out of their range, with its least and its largest value."""
    ranges = {name: _column_range(name) for name in names if name in _WIDE_32 or _WIDTHS[name] == 8}
    least, most = np.array(list(ranges.values()), np.int64).T
    return tuple(ranges), least[:, None], most[:, None]


def _column(name: str, values: Column, low: int, high: int) -> None:
    for value in (int(values.min()), int(values.max())):
        if not low <= value <= high:
            raise ImplausibleError("number", f"{value} in column {name}; it must be from {low} to {high}")


def _identity(text: str) -> ImplausibleError:
    return ImplausibleError("identity", text)


def _rank_message_holds(message: trace_pb2.RankMessage | trace_pb2.SentMessage) -> bool:
    return (
        0 <= message.received_unix_ns <= limits.MAX_TIME_NS
        and message.clock_offset_ns >= -limits.MAX_COUNT
        and message.clock_error_ns >= -1
    )  # fmt: skip


def _summary_holds(summary: trace_pb2.StepSummary) -> bool:
    return (
        summary.rows <= limits.MAX_SUMMARY_ROWS
        and summary.peak_activations <= limits.MAX_COUNT
        and summary.step <= limits.MAX_STEP
        and summary.dropped <= limits.MAX_DROPPED
        and 0 <= summary.duration_ns <= limits.MAX_DURATION_NS
        and 0 <= summary.cpu_ns <= limits.MAX_DURATION_NS
        and -limits.MAX_TIME_NS <= summary.start_ns <= limits.MAX_TIME_NS
    )


_RANK_MESSAGE = Ranges(
    "message",
    *up_to(limits.MAX_TIME_NS, "received_unix_ns"),
    ("clock_offset_ns", -limits.MAX_COUNT, limits.MAX_COUNT),
    ("clock_error_ns", -1, limits.MAX_COUNT),
    hold=_rank_message_holds,
)
_HELLO = Ranges("Hello", *up_to(OPEN_ENUM, "device", "attached"))
_PLACEMENT = Ranges(
    "placement",
    *up_to(limits.MAX_WORLD - 1, "tensor", "data", "context", "expert", "local_rank"),
    *up_to(limits.MAX_PIPELINE - 1, "pipeline"),
    *up_to(limits.MAX_TIME_NS, "host_unix_ns"),
    *times("host_clock_ns"),
)
_SIZES = Ranges(
    "sizes",
    *up_to(limits.MAX_WORLD, "world", "tensor", "data", "context", "expert"),
    *up_to(limits.MAX_PIPELINE, "pipeline"),
    *up_to(limits.MAX_VIRTUAL_PIPELINE, "virtual_pipeline"),
)
_SCHEDULE = Ranges(
    "schedule",
    *up_to(limits.MAX_MICROBATCHES, "microbatches"),
    *up_to(limits.MAX_STEP, "total_steps", "first_step"),
    *up_to(limits.MAX_SEQUENCE_LENGTH, "sequence_length"),
    *up_to(limits.MAX_MICRO_BATCH_SIZE, "micro_batch_size"),
    *up_to(limits.MAX_PARAMETERS, "parameters"),
)
_BATCH = Ranges(
    "batch",
    *up_to(limits.MAX_BATCH_ROWS, "count"),
    *up_to(limits.MAX_STEP, "step"),
    *up_to(limits.MAX_DROPPED, "dropped"),
    *up_to(limits.MAX_DURATION_NS, "reference_error_ns"),
    *times("reference_host_ns", "base_ns"),
)
_SUMMARY = Ranges(
    "summary",
    *up_to(limits.MAX_SUMMARY_ROWS, "rows"),
    *up_to(limits.MAX_COUNT, "peak_activations"),
    *up_to(limits.MAX_STEP, "step"),
    *up_to(limits.MAX_DROPPED, "dropped"),
    *up_to(limits.MAX_DURATION_NS, "duration_ns", "cpu_ns"),
    *times("start_ns"),
    hold=_summary_holds,
)
_PROGRESS = Ranges("progress", *up_to(limits.MAX_STEP, "total_steps"))
_SUMMARY_PARTS = {"progress": _PROGRESS, "memory": MEMORY}
_TIME = (-limits.MAX_TIME_NS, limits.MAX_TIME_NS)
_DURATION = (-limits.MAX_DURATION_NS, limits.MAX_DURATION_NS)
_WIDE = {"start_ns": _TIME, "enqueue_ns": _TIME, "message": (0, MAX_PACKED)} | {
    f"{measure}{part}_ns": _DURATION
    for measure in ("duration", "cpu", "launch_lag", "starved")
    for part in ("", "_sum", "_min", "_max")
}
"""Ranges of columns of eight bytes that are no mere counts. Differences of clocks may come out below 0."""
_WIDTHS = {name: dtype.itemsize for name, dtype in (SPAN_DTYPES | SUMMARY_DTYPES).items()}
_WIDE_32 = {"communicator": (0, limits.MAX_COMMUNICATORS), "peer": (-1, limits.MAX_WORLD - 1)}
