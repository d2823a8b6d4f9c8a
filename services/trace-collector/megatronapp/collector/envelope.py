"""A rank's message on its way: a serialized RankMessage built round the bytes that came, without parsing them again.

Protobuf fields may be concatenated, so identity, message, arrival and clock are each appended as they become known.
"""

from __future__ import annotations

from megatronapp.core.trace import varint
from megatronapp.v1 import trace_pb2

Record = tuple[bytes, ...]
"""A serialized RankMessage in pieces, so that a large message is not copied to stand behind its head."""

_MESSAGE_TAG = bytes([trace_pb2.RankMessage.MESSAGE_FIELD_NUMBER << 3 | 2])


def sender(identity: trace_pb2.Identity) -> bytes:
    """The part that is the same for all messages of a connection."""
    return trace_pb2.RankMessage(identity=identity).SerializeToString()


def wrap(sender: bytes, message: bytes, received_unix_ns: int) -> Record:
    """The record of one message, as it stands in the journal."""
    arrival = trace_pb2.RankMessage(received_unix_ns=received_unix_ns).SerializeToString()
    return b"".join((sender, arrival, _MESSAGE_TAG, varint.encode(len(message)))), message


def with_clock(record: Record, offset_ns: int, error_ns: int) -> bytes:
    """The record with what is known of its sender's clock, as it goes to the bus."""
    clock = trace_pb2.RankMessage(clock_offset_ns=offset_ns, clock_error_ns=error_ns).SerializeToString()
    return b"".join((*record, clock))
