from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import NO_COLUMNS
from megatronapp.core.trace.senders import sender_of
from megatronapp.core.trace.validate import check_sent
from megatronapp.core.trace.values import Identity
from megatronapp.core.trace.wire import to_proto
from megatronapp.v1 import trace_pb2

WHO = Identity(run="run-1", job="team/gpt", attempt=2, rank=3, incarnation=4)


def test_the_identity_on_the_wire_is_the_one_that_was_sent() -> None:
    sent = trace_pb2.RankMessage(identity=to_proto(WHO)).SerializeToString()

    message = trace_pb2.SentMessage.FromString(sent)

    assert sender_of(message.sender) == WHO


def test_an_identity_that_was_read_is_not_read_again() -> None:
    serialized = to_proto(WHO).SerializeToString()

    assert sender_of(serialized) is sender_of(bytes(bytearray(serialized)))


def test_the_longest_names_are_kept_and_padding_is_not() -> None:
    longest = Identity(
        run="r" * 128, job=f"{'n' * 63}/{'j' * 253}", attempt=100_000, rank=2**20 - 1, incarnation=2**64 - 1
    )
    serialized = to_proto(longest).SerializeToString()
    padded = serialized + b"\x7a\x90\x4e" + bytes(10_000)

    assert sender_of(serialized) is sender_of(serialized)
    assert sender_of(padded) == longest
    assert sender_of(padded) is not sender_of(padded)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "identity",
    [b"", trace_pb2.Identity(run="../x", job="a/b", attempt=1), trace_pb2.Identity(run="r", job="a/b", attempt=0)],
)
def test_an_identity_that_names_no_rank_is_refused_each_time(identity: bytes | trace_pb2.Identity, times: int) -> None:
    serialized = identity if isinstance(identity, bytes) else identity.SerializeToString()

    for _ in range(times):
        with pytest.raises(DataError):
            sender_of(serialized)


@pytest.mark.parametrize("broken", [b"\x0a\x7fx", b"\x0a\x01\xff"], ids=["cut off", "no text"])
def test_bytes_that_are_no_identity_are_refused(broken: bytes) -> None:
    with pytest.raises(DecodeError):
        sender_of(broken)


@pytest.mark.parametrize("field", ["run", "job", "attempt", "rank", "incarnation"])
def test_a_hello_of_another_than_its_sender_is_refused(field: str) -> None:
    other = to_proto(WHO)
    setattr(other, field, "x/y" if field in ("run", "job") else 99)
    message = trace_pb2.SentMessage(message=trace_pb2.SentTraceMessage(hello=trace_pb2.Hello(identity=other)))

    with pytest.raises(DataError, match="another rank"):
        check_sent(WHO, message)


BYTES = FieldDescriptor.TYPE_BYTES
LATER: dict[type[Message], list[tuple[tuple[str, object], tuple[str, object]]]] = {
    trace_pb2.RankMessage: [
        (("identity", "Identity"), ("sender", BYTES)),
        (("message", "TraceMessage"), ("message", "SentTraceMessage")),
    ],
    trace_pb2.TraceMessage: [(("heartbeat", "Heartbeat"), ("heartbeat", "SentHeartbeat"))],
    trace_pb2.Heartbeat: [(("frontiers", "Frontier"), ("frontiers", BYTES))],
}
"""Fields that differ: what is bytes on the wire, and is read later or not at all, and the way to it."""
NOT_READ: dict[type[Message], set[str]] = {
    trace_pb2.Heartbeat: {
        "unix_ns", "dropped", "control", "activity_since_ns", "memory", "evaluations", "operations_lost"
    }
}  # fmt: skip
"""What nobody asks for who reads messages on the wire."""


@pytest.mark.parametrize(
    ("read", "unread"),
    [
        (trace_pb2.RankMessage, trace_pb2.SentMessage),
        (trace_pb2.TraceMessage, trace_pb2.SentTraceMessage),
        (trace_pb2.Heartbeat, trace_pb2.SentHeartbeat),
    ],
)
def test_a_message_is_the_same_on_the_wire_with_its_parts_read_and_unread(
    read: type[Message], unread: type[Message]
) -> None:
    def fields(kind: type[Message]) -> list[tuple[int, str, object, bool]]:
        return [
            (f.number, f.name, f.message_type.name if f.message_type else f.type, f.is_repeated)
            for f in kind.DESCRIPTOR.fields
        ]

    whole, on_the_wire = {own[0]: own for own in fields(read)}, fields(unread)
    pairs = [(whole[its[0]], its) for its in on_the_wire]

    assert {whole[number][1] for number in whole.keys() - {its[0] for its in on_the_wire}} == NOT_READ.get(read, set())
    assert [own[3] for own, _ in pairs] == [its[3] for _, its in pairs]
    assert [(own[1:3], its[1:3]) for own, its in pairs if own != its] == LATER[read]


def test_what_is_not_read_of_a_heartbeat_is_not_checked_either_and_stays_in_the_message() -> None:
    beat = trace_pb2.Heartbeat(step=3, unix_ns=-1, memory=trace_pb2.Memory(host_bytes=1 << 63))
    sent = trace_pb2.RankMessage(message=trace_pb2.TraceMessage(seq=1, heartbeat=beat)).SerializeToString()

    message = trace_pb2.SentMessage.FromString(sent)

    assert check_sent(WHO, message) == ("heartbeat", NO_COLUMNS)
    assert trace_pb2.RankMessage.FromString(message.SerializeToString()).message.heartbeat == beat
