"""What the store keeps of an attempt besides its rows: a JobRecord, then each rank's Hello with its arrival, and its
goodbye."""

from __future__ import annotations

from io import BytesIO

from google.protobuf import proto
from google.protobuf.message import DecodeError

from megatronapp.collector.jobs import Attempt
from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.limits import MAX_COUNT
from megatronapp.core.trace.validate import check_message
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


def pack(attempt: Attempt) -> bytes:
    out = BytesIO()
    proto.serialize_length_prefixed(job_record(attempt), out)
    for rank in attempt.ranks.values():
        record = trace_pb2.RankMessage(
            identity=rank.process.identity,
            message=trace_pb2.TraceMessage(hello=rank.hello_snapshot(attempt.membership.recipe_of(rank.process.rank))),
            received_unix_ns=rank.process.heard_unix_ns,
            lost=rank.ended,
        )
        proto.serialize_length_prefixed(record, out)
        if rank.process.closed:
            goodbye = trace_pb2.TraceMessage(heartbeat=trace_pb2.Heartbeat(closing=True))
            record = trace_pb2.RankMessage(identity=rank.process.identity, message=goodbye)
            proto.serialize_length_prefixed(record, out)
    return out.getvalue()


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
    except (DecodeError, ValueError) as error:
        raise DataError(f"the note of an attempt can't be read: {error}") from error
    attempt.first_step, attempt.last_step, attempt.events = job.first_step, job.last_step, job.events
    attempt.dropped[-1, 0] = job.dropped
    attempt.changed = False
    return attempt


def _restore(attempt: Attempt, record: trace_pb2.RankMessage) -> None:
    """One rank that can't be is left out; an earlier version took in what is refused now."""
    number, hello = record.identity.rank, record.message.hello
    if record.message.HasField("hello"):
        try:
            check_message(record.message)
            process = attempt.membership.apply(record)
            if process is not None:
                attempt.on_hello(attempt.rank_of(process), hello.communicators)
        except DataError as error:
            log.error("rank_note_unreadable", run=attempt.run, attempt=attempt.attempt, rank=number, error=str(error))
    elif number in attempt.ranks:
        attempt.membership.apply(record)


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
        dropped=min(sum(attempt.dropped.values()), MAX_COUNT),
    )
