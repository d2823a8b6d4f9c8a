"""What can't be true of network ports is refused with one line, in a summary and beside a stack."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatronapp.core.trace.limits import MAX_COUNT, MAX_DURATION_NS, MAX_PORTS, MAX_WORLD
from megatronapp.core.trace.ranges import ImplausibleError
from megatronapp.core.trace.validate import check_message
from megatronapp.v1 import trace_pb2

PortSends = trace_pb2.PortSends


def summary(*ports: PortSends) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(seq=1, summary=trace_pb2.StepSummary(step=1, duration_ns=1, ports=ports))


def heartbeat(*ports: PortSends) -> trace_pb2.TraceMessage:
    stack = trace_pb2.Stack(state="sleeping", ports=ports)
    return trace_pb2.TraceMessage(seq=1, heartbeat=trace_pb2.Heartbeat(clock_ns=1, unix_ns=1, stack=stack))


said_in = pytest.mark.parametrize("said", [summary, heartbeat])


@said_in
def test_plausible_ones_pass(said: Callable[..., trace_pb2.TraceMessage]) -> None:
    port = PortSends(port="host_mlx5_0 port 0", busy_sends=3, busy_ns=9, busy_bytes=1 << 20, communicator=(1 << 64) - 1)

    check_message(said(*[port] * MAX_PORTS))


@said_in
@pytest.mark.parametrize(
    "refused",
    [
        PortSends(busy_sends=MAX_COUNT + 1),
        PortSends(busy_ns=MAX_DURATION_NS + 1),
        PortSends(busy_bytes=MAX_COUNT + 1),
        PortSends(operation=MAX_COUNT + 1),
        PortSends(outstanding_bytes=MAX_COUNT + 1),
        PortSends(peer=MAX_WORLD),
        PortSends(ended_unix_ns=-1),
        PortSends(port="x" * 10_000),
        PortSends(port="\n"),
    ],
    ids=["sends", "time", "bytes", "operation", "outstanding", "peer", "ended", "long", "unprintable"],
)
def test_one_that_cant_be_true_is_refused(said: Callable[..., trace_pb2.TraceMessage], refused: PortSends) -> None:
    with pytest.raises(ImplausibleError) as error:
        check_message(said(refused))

    assert "\n" not in str(error.value)


@said_in
def test_so_many_are_refused(said: Callable[..., trace_pb2.TraceMessage]) -> None:
    with pytest.raises(ImplausibleError, match=str(MAX_PORTS)):
        check_message(said(*[PortSends()] * (MAX_PORTS + 1)))
