"""Plain values of a rank, and what they become on the wire."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace import values, wire
from megatronapp.core.trace.message_id import MAX_PACKED, NO_MESSAGE, Direction, MessageId
from megatronapp.v1 import trace_pb2

HELLO = values.Hello(
    identity=values.Identity(run="r", job="local/x", attempt=2, rank=1, incarnation=2**64 - 1),
    placement=values.Placement(node="n", sizes=values.ParallelSizes(world=2), device_id="cpu:n/1"),
    schedule=values.Schedule(name="1f1b", microbatches=4),
    device=values.Device.CPU,
    communicators=(values.Communicator(index=1, id="dp:0-1", kind="dp", ranks=(0, 1)),),
    recipe=values.Recipe(settings=(values.Setting(name="lr", value="0.1"),)),
)


@pytest.mark.parametrize(("value", "message"), wire.MESSAGES.items())
def test_values_have_the_fields_of_their_messages(value: type, message: type) -> None:
    assert {each.name for each in fields(value)} == set(message.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("kind", ["Device", "Phase", "Granularity", "SpanKind"])
def test_enums_have_the_numbers_of_the_protocol(kind: str) -> None:
    prefix = {"SpanKind": "SPAN_KIND"}.get(kind, kind.upper())

    told = dict(getattr(trace_pb2, kind).items())

    assert {f"{prefix}_{each.name}": each.value for each in getattr(values, kind)} == told


def test_a_value_becomes_its_message() -> None:
    message = wire.to_proto(HELLO)

    assert message.identity.incarnation == 2**64 - 1
    assert list(message.communicators[0].ranks) == [0, 1]
    assert message.recipe.settings[0].value == "0.1"
    assert not wire.to_proto(values.Progress(loss=None)).HasField("loss")
    assert wire.to_proto(values.Progress(loss=0.0)).HasField("loss")


def test_a_value_survives_json() -> None:
    assert wire.from_document(values.Hello, json.loads(json.dumps(wire.to_document(HELLO)))) == HELLO


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {**wire.to_document(HELLO), "device": "cpu"},
        {**wire.to_document(HELLO), "communicators": [3]},
        {**wire.to_document(HELLO), "communicators": {}},
        {**wire.to_document(HELLO), "schedule": {"name": 1.5}},
    ],
)
def test_a_document_that_is_no_value_is_refused(document: object) -> None:
    with pytest.raises(DataError):
        wire.from_document(values.Hello, document)


def test_the_values_need_no_protobuf() -> None:
    program = "import sys, megatronapp.core.trace.values, megatronapp.core.trace.message_id; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert not [name for name in loaded if name.startswith(("google.protobuf", "grpc", "pydantic"))]


@given(
    st.sampled_from(Direction),
    st.integers(0, 2**20 - 1),
    st.integers(0, 2**10 - 1),
    st.integers(0, 2**8 - 1),
)
def test_a_message_keeps_its_name(direction: Direction, microbatch: int, chunk: int, part: int) -> None:
    message = MessageId(direction, microbatch, chunk, part)

    assert NO_MESSAGE < message.pack() <= MAX_PACKED
    assert MessageId.unpack(message.pack()) == message


@pytest.mark.parametrize("fields_", [{"microbatch": 2**20}, {"microbatch": -1}, {"chunk": 1024}, {"part": 256}])
def test_a_message_that_can_not_be_packed_is_refused(fields_: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="of a message"):
        MessageId(**{"direction": Direction.FORWARD, "microbatch": 0, **fields_}).pack()


@pytest.mark.parametrize("packed", [0, MAX_PACKED + 1, 2**63])
def test_a_number_that_names_no_message_is_refused(packed: int) -> None:
    with pytest.raises(ValueError, match="not a valid"):
        MessageId.unpack(packed)
