"""Whether what a summary says of NCCL's operations, and of network ports, can be true."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.trace import limits
from megatronapp.core.trace.checks import check_count, check_texts, up_to
from megatronapp.core.trace.ranges import ImplausibleError, Ranges
from megatronapp.v1 import trace_pb2


def check_tallies(tallies: Sequence[trace_pb2.NcclTally]) -> None:
    """Raises ImplausibleError."""
    check_count("kinds of NCCL's operations", len(tallies), limits.MAX_TALLIES)
    _TALLY.check_all(tallies)
    for tally in tallies:
        check_seat(tally.seat)
        check_texts("NCCL's operation", [tally.operation, tally.algorithm, tally.protocol])
        check_count("sampled operations", len(tally.numbers), limits.MAX_SAMPLED)
        if len(tally.numbers) != len(tally.durations_ns):
            raise ImplausibleError("rows", "sampled operations without their durations")
        if len(tally.numbers) and max(*tally.numbers, *tally.durations_ns) > limits.MAX_COUNT:
            raise ImplausibleError("number", "a sampled operation whose number or duration is out of range")


def check_ports(ports: Sequence[trace_pb2.PortSends]) -> None:
    """Raises ImplausibleError."""
    check_count("network ports", len(ports), limits.MAX_PORTS)
    _PORT.check_all(ports)
    check_texts("network port", [port.port for port in ports], limits.MAX_NAME)


def check_seat(seat: trace_pb2.NcclSeat) -> None:
    """Raises ImplausibleError."""
    if not (seat.place < seat.size <= limits.MAX_WORLD and (not seat.HasField("peer") or seat.peer < seat.size)):
        raise ImplausibleError("number", f"NCCL's communicator: place {seat.place} or {seat.peer} of {seat.size}")


_TALLY = Ranges(
    "tally",
    *up_to(63, "size_log2"),
    *up_to(limits.MAX_COUNT, "count", "fastest_bytes", "sent_bytes"),
    *up_to(limits.MAX_DURATION_NS, "fastest_ns", "gpu_ns", "peer_ns", "network_ns", "data_ns"),
)
_PORT = Ranges(
    "network port",
    *up_to(limits.MAX_COUNT, "busy_sends", "busy_bytes", "operation", "outstanding_bytes"),
    *up_to(limits.MAX_DURATION_NS, "busy_ns"),
    *up_to(limits.MAX_WORLD - 1, "peer"),
    *up_to(limits.MAX_TIME_NS, "ended_unix_ns"),
)
