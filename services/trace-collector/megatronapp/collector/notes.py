"""What the store keeps of an attempt besides its rows: a JobRecord, then of each rank its Hello with its arrival, and
two heartbeats: that which first told where the rank stands, and its newest. They tell how it has ended, and in what the
ranks of a job that hung stood for how long."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Literal

from google.protobuf import proto
from google.protobuf.message import DecodeError

from megatronapp.collector.jobs import Attempt, Rank
from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.limits import MAX_COUNT, MAX_KEPT_HEARTBEAT_BYTES
from megatronapp.core.trace.membership import Process, copied
from megatronapp.core.trace.validate import check_message
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


def pack(attempt: Attempt) -> bytes:
    out = BytesIO()
    job = job_record(attempt)
    job.evaluations.extend(attempt.evaluations)
    proto.serialize_length_prefixed(job, out)
    for rank in attempt.ranks.values():
        record = trace_pb2.RankMessage(
            identity=rank.process.identity,
            message=trace_pb2.TraceMessage(hello=rank.hello_snapshot(attempt.membership.recipe_of(rank.process.rank))),
            received_unix_ns=rank.process.heard_unix_ns,
            lost=rank.ended,
        )
        proto.serialize_length_prefixed(record, out)
        for record in _heartbeats(rank):
            proto.serialize_length_prefixed(record, out)
    return out.getvalue()


def _heartbeats(rank: Rank) -> Iterator[trace_pb2.RankMessage]:
    process, since, newest = rank.process, rank.since, rank.newest
    if newest is None:
        if process.closed:  # an earlier version kept no more than that
            yield _record(process, 0, 0, trace_pb2.Heartbeat(closing=True))
        return
    if since is not None and since.seq < newest.seq:
        yield _record(process, since.seq, since.unix_ns, _kept(since.heartbeat, closing=False))
    yield _record(process, newest.seq, newest.unix_ns, _kept(newest.heartbeat, closing=process.closed))


def _record(process: Process, seq: int, unix_ns: int, heartbeat: trace_pb2.Heartbeat) -> trace_pb2.RankMessage:
    message = trace_pb2.TraceMessage(seq=seq, heartbeat=heartbeat)
    return trace_pb2.RankMessage(identity=process.identity, message=message, received_unix_ns=unix_ns)


def _kept(heartbeat: trace_pb2.Heartbeat, *, closing: bool) -> trace_pb2.Heartbeat:
    """What the store keeps of a heartbeat; Hello and JobRecord hold the rest."""
    kept = without(heartbeat, "communicators", "evaluations")
    kept.closing = closing
    return kept if kept.ByteSize() <= MAX_KEPT_HEARTBEAT_BYTES else without(kept, "frontiers")


Left = Literal["frontiers", "communicators", "evaluations"]


def without(heartbeat: trace_pb2.Heartbeat, *fields: Left) -> trace_pb2.Heartbeat:
    """A copy that lacks these fields."""
    result = copied(heartbeat)
    for field in fields:
        result.ClearField(field)
    return result


def unpack(data: bytes) -> Attempt:
    """Raises DataError."""
    source = BytesIO(data)
    try:
        job = proto.parse_length_prefixed(trace_pb2.JobRecord, source)
        if job is None:
            raise DataError("an empty note of an attempt")
        attempt = Attempt(job.run, job.job, job.attempt, job.first_seen_unix_ns, job.last_seen_unix_ns)
        while (record := proto.parse_length_prefixed(trace_pb2.RankMessage, source)) is not None:
            _restore(attempt, record)
    except (DecodeError, ValueError, OverflowError) as error:
        raise DataError(f"the note of an attempt can't be read: {error}") from error
    attempt.first_step, attempt.last_step, attempt.events = job.first_step, job.last_step, job.events
    attempt.dropped = job.dropped
    attempt.evaluations.take(job.evaluations)
    attempt.changed = False
    return attempt


def _restore(attempt: Attempt, record: trace_pb2.RankMessage) -> None:
    """What can't be true is left out; an earlier version took in what is refused now."""
    number, message = record.identity.rank, record.message
    known = attempt.ranks.get(number)
    try:
        if message.HasField("hello"):
            check_message(message)
            process = attempt.membership.apply(record)
            if process is not None:
                attempt.on_hello(attempt.rank_of(process), message.hello.communicators)
        elif known is not None and message.seq == 0:  # an earlier version's goodbye, which tells no more
            known.process.closed = True
        elif known is not None:
            check_message(message)
            attempt.membership.apply(record)
            known.beat()
            known.dropped = known.process.dropped  # which the attempt's count has
            known.operations_lost = max(known.operations_lost, message.heartbeat.operations_lost)
    except DataError as error:
        log.error("rank_note_unreadable", run=attempt.run, attempt=attempt.attempt, rank=number, error=str(error))


def job_record(attempt: Attempt) -> trace_pb2.JobRecord:
    """The attempt as TraceQuery shows it, without the size of its files."""
    return trace_pb2.JobRecord(
        run=attempt.run,
        job=attempt.job,
        attempt=attempt.attempt,
        sizes=attempt.sizes,
        schedule=attempt.schedule,
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        first_seen_unix_ns=attempt.first_seen_unix_ns,
        last_seen_unix_ns=attempt.last_seen_unix_ns,
        ranks_connected=sum(rank.streams > 0 for rank in attempt.ranks.values()),
        events=attempt.events,
        dropped=min(attempt.dropped, MAX_COUNT),
    )
