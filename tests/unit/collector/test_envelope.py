from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector import envelope
from megatronapp.v1 import trace_pb2

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(size=st.integers(0, 70_000), received=st.integers(1, 2**62), offset=INT64, error=INT64)
def test_what_is_put_together_reads_as_one_message(size: int, received: int, offset: int, error: int) -> None:
    identity = trace_pb2.Identity(run="run", job="team/gpt", attempt=2, rank=3, incarnation=4)
    message = trace_pb2.TraceMessage(seq=7, batch=trace_pb2.TraceBatch(step=1, start_ns=bytes(size)))

    record = envelope.wrap(envelope.sender(identity), message.SerializeToString(), received)
    whole = trace_pb2.RankMessage.FromString(envelope.with_clock(record, offset, error))

    assert whole == trace_pb2.RankMessage(
        identity=identity,
        message=message,
        received_unix_ns=received,
        clock_offset_ns=offset,
        clock_error_ns=error,
    )
