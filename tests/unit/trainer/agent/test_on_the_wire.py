"""What goes on the stream, put together from serialized messages, against protobuf's own way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.trainer.agent.stream import on_the_wire
from megatronapp.v1 import trace_pb2


@given(st.lists(st.integers(0, 1 << 17).map(bytes), min_size=2, max_size=5))
def test_a_bundle_is_what_protobuf_makes_of_it(serialized: list[bytes]) -> None:
    sent = on_the_wire([Outgoing(1, "batch", 1, data) for data in serialized])

    bundle = trace_pb2.Bundle(messages=serialized)
    assert sent == trace_pb2.TraceMessage(bundle=bundle).SerializeToString()


def test_a_message_alone_is_in_no_bundle() -> None:
    assert on_the_wire([Outgoing(1, "summary", 1, b"serialized")]) == b"serialized"
