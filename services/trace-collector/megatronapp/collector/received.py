"""A message that has arrived and been checked: what intake hands to the journal, and replay hands on again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from megatronapp.collector import envelope
from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import Column, span_columns, summary_columns
from megatronapp.v1 import trace_pb2

SenderKey = tuple[str, int, int, int]
"""(run, attempt, rank, incarnation)"""


@dataclass(frozen=True, slots=True)
class Received:
    identity: trace_pb2.Identity
    message: trace_pb2.TraceMessage
    columns: Mapping[str, Column]
    """The batch's or summary's columns, views of the message's bytes; empty for other kinds."""
    record: envelope.Record
    """As in the journal."""
    received_unix_ns: int

    @property
    def sender(self) -> SenderKey:
        identity = self.identity
        return identity.run, identity.attempt, identity.rank, identity.incarnation

    @property
    def size(self) -> int:
        """Bytes in the journal."""
        return sum(map(len, self.record))

    @property
    def kind(self) -> str:
        """hello, batch, summary or heartbeat."""
        return self.message.WhichOneof("body") or ""


def parse(data: bytes) -> trace_pb2.TraceMessage:
    """Raises DataError for what is no TraceMessage."""
    try:
        return trace_pb2.TraceMessage.FromString(data)
    except DecodeError as error:
        raise DataError(f"a message of {len(data)} bytes is no TraceMessage") from error


def check(message: trace_pb2.TraceMessage) -> Mapping[str, Column]:
    """The message's columns, where it has any. Raises DataError when it does not hold what it must."""
    kind = message.WhichOneof("body")
    if kind is None:
        raise DataError("a message without a body; the sender is newer than this collector")
    if (message.seq == 0) != (kind == "hello"):
        raise DataError(f"seq {message.seq} in a {kind}; it counts from 1, and is 0 in Hello alone")
    if kind == "summary":
        return summary_columns(message.summary)
    if kind != "batch":
        return {}
    batch = message.batch
    columns = span_columns(batch)
    if len(batch.start_ns) != 8 * batch.count:
        raise DataError(f"a batch of {batch.count} spans without start_ns")
    return columns


def from_record(record: bytes) -> Received:
    """The inverse of the journal's writing. Raises DataError."""
    try:
        rank_message = trace_pb2.RankMessage.FromString(record)
    except DecodeError as error:
        raise DataError(f"a journal record of {len(record)} bytes is no RankMessage") from error
    message = rank_message.message
    return Received(rank_message.identity, message, check(message), (record,), rank_message.received_unix_ns)


def from_wire(identity: trace_pb2.Identity, sender: bytes, data: bytes, received_unix_ns: int) -> Received:
    """A message as it came, from `identity`, whose envelope.sender() is `sender`. Raises DataError."""
    message = parse(data)
    columns = check(message)
    return Received(identity, message, columns, envelope.wrap(sender, data, received_unix_ns), received_unix_ns)
