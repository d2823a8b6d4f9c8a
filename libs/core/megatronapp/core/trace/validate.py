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
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.trace import limits
from megatronapp.core.trace.columns import (
    NO_COLUMNS,
    SPAN_DTYPES,
    SUMMARY_DTYPES,
    Column,
    Columns,
    span_columns,
    summary_columns,
)
from megatronapp.core.trace.extents import Extent, Ints
from megatronapp.core.trace.message_id import MAX_PACKED
from megatronapp.core.trace.ranges import ImplausibleError, Range, Ranges
from megatronapp.v1 import trace_pb2

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
    identity, body = message.identity, message.message
    check_identity(identity)
    _RANK_MESSAGE.check(message)
    kind = body.WhichOneof("body")
    if kind is None and message.lost:
        return
    if kind == "hello" and body.hello.HasField("identity") and body.hello.identity != identity:
        raise _identity("a Hello of another rank than the message's sender")
    _understand(body, kind)


def understand(message: trace_pb2.TraceMessage) -> tuple[str, Columns]:
    """The message's kind and its columns, which have no rows unless it is a batch or a summary.

    Raises DataError as check_message does.
    """
    kind = message.WhichOneof("body")
    if kind == "hello":
        check_identity(message.hello.identity)
    return _understand(message, kind)


def _understand(message: trace_pb2.TraceMessage, kind: str | None) -> tuple[str, Columns]:
    if kind is None:
        raise DataError("a message without a body; the sender is newer than this service")
    if kind == "bundle":
        raise DataError("a bundle stands on a stream only, and for itself")
    if (message.seq == 0) != (kind == "hello"):
        raise DataError(f"seq {message.seq} in a {kind}; it counts from 1; only Hello has 0")
    if kind == "hello":
        _hello(message.hello)
    elif kind == "heartbeat":
        _heartbeat(message.heartbeat)
    else:
        return kind, _batch(message.batch) if kind == "batch" else _summary(message.summary)
    return kind, NO_COLUMNS


def check_control(control: trace_pb2.TraceControl) -> None:
    """Raises ImplausibleError. A field that is 0 was not set."""
    _CONTROL.check(control)


def _hello(hello: trace_pb2.Hello) -> None:
    place, sizes, schedule = hello.placement, hello.placement.sizes, hello.schedule
    for ranges, part in ((_HELLO, hello), (_PLACEMENT, place), (_SIZES, sizes), (_SCHEDULE, schedule)):
        ranges.check(part)
    if abs(place.host_unix_ns - place.host_clock_ns) > limits.MAX_TIME_NS:
        raise ImplausibleError("number", "host_unix_ns and host_clock_ns are further apart than any clocks can be")
    passes = math.prod(max(1, n) for n in (schedule.microbatches, sizes.virtual_pipeline, sizes.pipeline))
    if passes > limits.MAX_STEP_PASSES:
        raise ImplausibleError(
            "number", f"microbatches x virtual_pipeline x pipeline is {passes}; at most {limits.MAX_STEP_PASSES}"
        )
    _texts("node", [place.node])
    _texts("gpu_uuid", [place.gpu_uuid])
    _texts("device", [place.device_id, place.device_name])
    _texts("schedule", [schedule.name])
    _communicators(hello.communicators)
    _recipe(hello.recipe)


def _batch(batch: trace_pb2.TraceBatch) -> Columns:
    _batch_fields(batch)
    _names(batch.names)
    columns = span_columns(batch)
    if columns.rows and columns.sent("start_ns") is None:
        raise DataError(f"a batch of {columns.rows} spans without start_ns")
    _check_columns(columns)
    return columns


def _batch_fields(batch: trace_pb2.TraceBatch) -> None:
    _BATCH.check(batch)
    _communicators(batch.communicators)


def _summary(summary: trace_pb2.StepSummary) -> Columns:
    _summary_fields(summary)
    _names(summary.names)
    columns = summary_columns(summary)
    if columns.rows and columns.empty:
        raise ImplausibleError("rows", f"a summary of {columns.rows} rows without any column")
    _check_columns(columns)
    return columns


def _summary_fields(summary: trace_pb2.StepSummary) -> None:
    _SUMMARY.check(summary)
    _communicators(summary.communicators)
    if len(summary.phases) > limits.MAX_PHASES:
        raise ImplausibleError("phases", f"{len(summary.phases)} phases in a step; at most {limits.MAX_PHASES}")
    for phase in summary.phases:
        _phase(phase)
    _parts(summary, _SUMMARY_PARTS)


def _heartbeat(beat: trace_pb2.Heartbeat) -> None:
    _HEARTBEAT.check(beat)
    _phase(beat.phase)
    _parts(beat, _HEARTBEAT_PARTS)
    texts = [beat.activity]
    if frontiers := list(beat.frontiers):
        _at_most("frontiers", len(frontiers), limits.MAX_FRONTIERS)
        _FRONTIER.check_all(frontiers)
        texts += map(_OPERATION, frontiers)
        for opened in filter(len, map(_OPEN_MESSAGES, frontiers)):
            _at_most("open messages of a pair", len(opened), limits.MAX_OPEN_MESSAGES)
            _OPEN.check_all(opened)
    _texts("activity or operation", texts, limits.MAX_NAME)
    _communicators(beat.communicators)
    if evaluations := beat.evaluations:
        _at_most("evaluations", len(evaluations), limits.MAX_EVALUATIONS)
        _EVALUATION.check_all(evaluations)
        for evaluation in evaluations:
            _texts("evaluation", [evaluation.split])


def _communicators(communicators: Sequence[trace_pb2.Communicator]) -> None:
    if len(communicators) > limits.MAX_COMMUNICATORS:
        raise ImplausibleError(
            "communicators", f"{len(communicators)} communicators; at most {limits.MAX_COMMUNICATORS}"
        )
    for communicator in communicators:
        ranks, index = communicator.ranks, communicator.index
        if not 1 <= index <= limits.MAX_COMMUNICATORS:
            raise ImplausibleError(
                "communicators", f"communicator index {index}; it counts from 1 to {limits.MAX_COMMUNICATORS}"
            )
        if len(ranks) > limits.MAX_WORLD or (len(ranks) and max(ranks) >= limits.MAX_WORLD):
            raise ImplausibleError("communicators", f"a communicator of ranks above {limits.MAX_WORLD - 1}")
        _texts("communicator", [communicator.id], limits.MAX_COMMUNICATOR_ID + limits.RANK_CHARACTERS * len(ranks))
        _texts("communicator kind", [communicator.kind])


def _recipe(recipe: trace_pb2.Recipe) -> None:
    if recipe.ByteSize() > limits.MAX_RECIPE_BYTES:
        raise ImplausibleError("text", f"a recipe of more than {limits.MAX_RECIPE_BYTES >> 10} KiB")
    for what, settings in (("setting", recipe.settings), ("version", recipe.versions)):
        _at_most(f"{what}s", len(settings), limits.MAX_SETTINGS)
        _texts(what, [each.name for each in settings])
        _texts(f"value of a {what}", [each.value for each in settings], limits.MAX_SETTING)


def _names(names: Sequence[str]) -> None:
    _at_most("names", len(names), limits.MAX_NAMES)
    _texts("name", names, limits.MAX_NAME)


def _check_columns(columns: Columns) -> None:
    """Only what is sent wide can be out of the range of a time or a count."""
    for name, width in columns.widths():
        in_question = width == 8 or (width == 4 and name in _WIDE_32)
        if in_question and (sent := columns.sent(name)) is not None:
            _column(name, sent, *_column_range(name))


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


def _phase(phase: int) -> None:
    if not 0 <= phase <= limits.MAX_PHASE:
        raise ImplausibleError("phases", f"phase {phase}; phases are numbered from 0 to {limits.MAX_PHASE}")


def _parts(message: Any, parts: Mapping[str, Ranges]) -> None:
    """Those of a message's parts that it has."""
    for name, ranges in parts.items():
        if message.HasField(name):
            ranges.check(getattr(message, name))


def _at_most(what: str, count: int, most: int) -> None:
    if count > most:
        raise ImplausibleError("rows", f"{count} {what}; at most {most} are accepted")


def _texts(what: str, texts: Sequence[str], longest: int = limits.MAX_LABEL) -> None:
    joined = "".join(texts)
    if len(joined) > longest and max(map(len, texts)) > longest:
        raise ImplausibleError("text", f"{what} of more than {longest} characters")
    if not joined.isprintable():
        raise ImplausibleError("text", f"{what} with characters that can't be printed")


def _identity(text: str) -> ImplausibleError:
    return ImplausibleError("identity", text)


def _times(*fields: str) -> list[Range]:
    return [(field, -limits.MAX_TIME_NS, limits.MAX_TIME_NS) for field in fields]


def _to(high: int, *fields: str) -> list[Range]:
    return [(field, 0, high) for field in fields]


_OPERATION, _OPEN_MESSAGES = attrgetter("operation"), attrgetter("open")
_OPEN_ENUM = 31
"""A newer sender may name values that are not known here."""

_TIME_NS, _COUNT = limits.MAX_TIME_NS, limits.MAX_COUNT


def _rank_message_holds(message: trace_pb2.RankMessage) -> bool:
    return (
        0 <= message.received_unix_ns <= _TIME_NS
        and message.clock_offset_ns >= -_COUNT
        and message.clock_error_ns >= -1
    )  # fmt: skip


def _heartbeat_holds(beat: trace_pb2.Heartbeat) -> bool:
    return (
        beat.step <= limits.MAX_STEP
        and beat.dropped <= limits.MAX_DROPPED
        and 0 <= beat.unix_ns <= _TIME_NS
        and 0 <= beat.thread_cpu_ns <= _TIME_NS
        and 0 <= beat.thread_wait_ns <= _TIME_NS
        and -_TIME_NS <= beat.clock_ns <= _TIME_NS
        and -_TIME_NS <= beat.activity_since_ns <= _TIME_NS
    )


def _frontier_holds(frontier: trace_pb2.Frontier) -> bool:
    return (
        frontier.communicator <= limits.MAX_COMMUNICATORS
        and frontier.enqueued <= _COUNT
        and frontier.started <= _COUNT
        and frontier.completed <= _COUNT
        and -_TIME_NS <= frontier.enqueued_at_ns <= _TIME_NS
        and -_TIME_NS <= frontier.completed_at_ns <= _TIME_NS
        and -1 <= frontier.peer < limits.MAX_WORLD
    )


def _open_message_holds(message: trace_pb2.OpenMessage) -> bool:
    return (
        message.step <= limits.MAX_STEP
        and message.message <= MAX_PACKED
        and -_TIME_NS <= message.posted_at_ns <= _TIME_NS
    )


_RANK_MESSAGE = Ranges(
    "message",
    *_to(limits.MAX_TIME_NS, "received_unix_ns"),
    ("clock_offset_ns", -limits.MAX_COUNT, limits.MAX_COUNT),
    ("clock_error_ns", -1, limits.MAX_COUNT),
    hold=_rank_message_holds,
)
_HELLO = Ranges("Hello", *_to(_OPEN_ENUM, "device"))
_PLACEMENT = Ranges(
    "placement",
    *_to(limits.MAX_WORLD - 1, "tensor", "data", "context", "expert", "local_rank"),
    *_to(limits.MAX_PIPELINE - 1, "pipeline"),
    *_to(limits.MAX_TIME_NS, "host_unix_ns"),
    *_times("host_clock_ns"),
)
_SIZES = Ranges(
    "sizes",
    *_to(limits.MAX_WORLD, "world", "tensor", "data", "context", "expert"),
    *_to(limits.MAX_PIPELINE, "pipeline"),
    *_to(limits.MAX_VIRTUAL_PIPELINE, "virtual_pipeline"),
)
_SCHEDULE = Ranges(
    "schedule",
    *_to(limits.MAX_MICROBATCHES, "microbatches"),
    *_to(limits.MAX_STEP, "total_steps", "first_step"),
    *_to(limits.MAX_SEQUENCE_LENGTH, "sequence_length"),
    *_to(limits.MAX_MICRO_BATCH_SIZE, "micro_batch_size"),
    *_to(limits.MAX_PARAMETERS, "parameters"),
)
_BATCH = Ranges(
    "batch",
    *_to(limits.MAX_BATCH_ROWS, "count"),
    *_to(limits.MAX_STEP, "step"),
    *_to(limits.MAX_DROPPED, "dropped"),
    *_to(limits.MAX_DURATION_NS, "reference_error_ns"),
    *_times("reference_host_ns", "base_ns"),
)
_SUMMARY = Ranges(
    "summary",
    *_to(limits.MAX_SUMMARY_ROWS, "rows"),
    *_to(limits.MAX_STEP, "step"),
    *_to(limits.MAX_DROPPED, "dropped"),
    *_to(limits.MAX_DURATION_NS, "duration_ns", "cpu_ns"),
    *_times("start_ns"),
)
_PROGRESS = Ranges("progress", *_to(limits.MAX_STEP, "total_steps"))
_HEARTBEAT = Ranges(
    "heartbeat",
    *_to(limits.MAX_STEP, "step"),
    *_to(limits.MAX_DROPPED, "dropped"),
    *_to(limits.MAX_TIME_NS, "unix_ns", "thread_cpu_ns", "thread_wait_ns"),
    *_times("clock_ns", "activity_since_ns"),
    hold=_heartbeat_holds,
)
_CONTROL = Ranges(
    "trace control",
    *_to(limits.MAX_TRACE_INTERVAL, "interval", "continuous_iterations"),
    *_to(_OPEN_ENUM, "granularity"),
)
_GPU = Ranges("gpu", *_to(limits.MAX_COUNT, "ecc_volatile_uncorrected", "pcie_replays"))
_FRONTIER = Ranges(
    "frontier",
    *_to(limits.MAX_COMMUNICATORS, "communicator"),
    *_to(limits.MAX_COUNT, "enqueued", "started", "completed"),
    *_times("enqueued_at_ns", "completed_at_ns"),
    ("peer", -1, limits.MAX_WORLD - 1),
    hold=_frontier_holds,
)
_OPEN = Ranges(
    "open message",
    *_to(limits.MAX_STEP, "step"),
    *_to(MAX_PACKED, "message"),
    *_times("posted_at_ns"),
    hold=_open_message_holds,
)
_MEMORY = Ranges(
    "memory",
    *_to(limits.MAX_COUNT, "allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "device_bytes", "host_bytes"),
)
_SUMMARY_PARTS = {"progress": _PROGRESS, "memory": _MEMORY}
_HEARTBEAT_PARTS = {"control": _CONTROL, "gpu": _GPU, "memory": _MEMORY}
_EVALUATION = Ranges("evaluation", *_to(limits.MAX_STEP, "step"), *_to(limits.MAX_COUNT, "microbatches"))
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
