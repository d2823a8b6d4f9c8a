"""A message that has arrived and been checked: what intake hands to the journal, and replay hands on again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from megatronapp.collector import envelope
from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import NOTHING, Columns
from megatronapp.core.trace.skim import Skimmed, skim
from megatronapp.core.trace.validate import check_rank_message, understand
from megatronapp.v1 import trace_pb2

SenderKey = tuple[str, int, int, int]
"""(run, attempt, rank, incarnation)"""


@dataclass(frozen=True, slots=True)
class Sender:
    """A rank's process, with what all its messages share."""

    identity: trace_pb2.Identity
    key: SenderKey
    head: bytes
    """Of their records: envelope.sender."""

    @classmethod
    def of(cls, identity: trace_pb2.Identity) -> Sender:
        key = (identity.run, identity.attempt, identity.rank, identity.incarnation)
        return cls(identity, key, envelope.sender(identity))


@dataclass(frozen=True, slots=True)
class Received:
    sender: Sender
    message: trace_pb2.TraceMessage
    kind: str
    """hello, batch, summary or heartbeat."""
    columns: Columns
    """The batch's or summary's; without rows for other kinds."""
    record: envelope.Record
    """As in the journal."""
    size: int
    """Bytes of the record."""
    received_unix_ns: int

    @property
    def identity(self) -> trace_pb2.Identity:
        return self.sender.identity

    @property
    def rank_time_ns(self) -> int:
        """When the rank sent it, on its own clock."""
        message = self.message
        if self.kind == "summary":
            return message.summary.start_ns + message.summary.duration_ns
        if self.kind == "heartbeat":
            return message.heartbeat.clock_ns
        return message.hello.placement.host_clock_ns


def parse(data: bytes) -> trace_pb2.TraceMessage:
    """Raises DataError for what is no TraceMessage."""
    try:
        return trace_pb2.TraceMessage.FromString(data)
    except DecodeError as error:
        raise DataError(f"a message of {len(data)} bytes is no TraceMessage") from error


def parse_record(record: bytes) -> trace_pb2.RankMessage:
    """What the journal holds. Raises DataError."""
    try:
        return trace_pb2.RankMessage.FromString(record)
    except DecodeError as error:
        raise DataError(f"a journal record of {len(record)} bytes is no RankMessage") from error


def from_record(record: bytes) -> Received:
    """The inverse of the journal's writing. Raises DataError."""
    rank_message = parse_record(record)
    check_rank_message(rank_message)
    message, sender = rank_message.message, Sender.of(rank_message.identity)
    return Received(sender, message, *understand(message), (record,), len(record), rank_message.received_unix_ns)


def unbundled(data: bytes) -> Iterator[tuple[Skimmed, bytes]]:
    """The message that came, or those of a bundle, each with its bytes. Raises DataError."""
    first = read(data)
    message = first[0]
    if not message.HasField("bundle"):
        yield first, data
    elif not message.bundle.messages:
        raise DataError("an empty bundle")
    for each in message.bundle.messages:
        yield read(each), each


def read(data: bytes) -> Skimmed:
    """A message, and its columns that stay in the bytes that came. Raises DataError."""
    return skim(data) or (parse(data), NOTHING)


def from_wire(sender: Sender, read: Skimmed, data: bytes, received_unix_ns: int) -> Received:
    """What was read of the bytes `data`. Raises DataError."""
    message, beside = read
    kind, columns = understand(message, beside)
    record = envelope.wrap(sender.head, data, received_unix_ns)
    return Received(sender, message, kind, columns, record, sum(map(len, record)), received_unix_ns)
