"""What NCCL tells of a step's operations: how fast each transfer was, and what those waited for who sent.

Bus bandwidth is what nccl-tests calls so (its PERFORMANCE.md): bytes over time, times a factor that makes it comparable
with the hardware's speed whatever the number of members. Nobody waits in the fastest of an operation's members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.signals.nccl import Joined, Ranks, Seat, joined
from megatronapp.detector.steps import Group
from megatronapp.v1 import trace_pb2

NS = 1e-9
Sent = Sequence[tuple[int, Sequence[trace_pb2.NcclTally]]]
OfPorts = Sequence[tuple[int, Sequence[trace_pb2.PortSends]]]
"""Both by global rank."""
MESSAGE = "message"
"""The operation of a message's two ends."""
MOST_COMMUNICATORS = 4096
"""Of a rank; those that it names later are left out."""
OF_PAIRS = frozenset({SpanName.ALL_TO_ALL, SpanName.GATHER, SpanName.SCATTER})
"""Of which NCCL counts what goes to one member."""
LEAST_SENT_BYTES = 1 << 16
"""Of a rank in a step, and of a transfer: what sends fewer says nothing of speed. A sum of two numbers takes as long as
its members take to begin."""


class Transfer(NamedTuple):
    """What is compared: transfers of one communicator, or from one rank to another, that NCCL does alike."""

    communicator: str
    operation: str
    algorithm: str
    protocol: str
    size_log2: int


@dataclass(slots=True)
class Transfers:
    """Of one step."""

    bandwidth: dict[Transfer, float] = field(default_factory=dict)
    """Bus bandwidth of the fastest, bytes a second."""
    ends: dict[Transfer, tuple[Ranks, Ranks]] = field(default_factory=dict)
    """Global ranks that send, and that receive."""


@dataclass(slots=True)
class Waits:
    """Of one rank's proxy steps in one step, seconds, all together."""

    gpu: float = 0.0
    peer: float = 0.0
    network: float = 0.0
    """That sends end."""
    data: float = 0.0
    sent_bytes: int = 0

    @property
    def sending(self) -> float | None:
        """Seconds that a byte takes to be sent; None: too few were."""
        return self.network / self.sent_bytes if self.network > 0 and self.sent_bytes >= LEAST_SENT_BYTES else None


def bus_factor(operation: str, ranks: int) -> float:
    """Of the bytes that tallies tell: of the larger side, but of one pair where NCCL counts these."""
    if operation == SpanName.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if operation in (SpanName.ALL_GATHER, SpanName.REDUCE_SCATTER):
        return (ranks - 1) / ranks
    return float(ranks - 1) if operation in OF_PAIRS else 1.0


class Communicators:
    """NCCL's, as the ranks' seats tell them step by step."""

    def __init__(self) -> None:
        self._seats: dict[int, dict[int, Seat]] = {}
        self._groups: tuple[Group, ...] = ()
        self.known: Mapping[int, Joined] = {}

    def learn(self, sent: Sent, groups: tuple[Group, ...]) -> None:
        changed = groups != self._groups
        for rank, tallies in sent:
            own = self._seats.setdefault(rank, {})
            for tally in tallies:
                seat = tally.seat
                if seat.hash not in own and len(own) < MOST_COMMUNICATORS:
                    own[seat.hash] = Seat(seat.hash, seat.size, seat.place)
                    changed = True
        if changed:
            self._groups = groups
            seats = {rank: own.values() for rank, own in self._seats.items()}
            self.known = joined(seats, {group.id: group.ranks for group in groups})


def transfers(sent: Sent, known: Mapping[int, Joined]) -> Transfers:
    found = Transfers()
    for rank, tallies in sent:
        for tally in tallies:
            communicator = known.get(tally.seat.hash)
            if communicator is None or not tally.fastest_ns or tally.fastest_bytes < LEAST_SENT_BYTES:
                continue
            name, senders, receivers = _ends(rank, tally, communicator)
            key = Transfer(name, _operation(tally), tally.algorithm, tally.protocol, tally.size_log2)
            factor = bus_factor(tally.operation, len(communicator.ranks))
            speed = tally.fastest_bytes * factor / (tally.fastest_ns * NS)
            if speed > found.bandwidth.get(key, 0.0):
                found.bandwidth[key], found.ends[key] = speed, (senders, receivers)
    return found


def waits(sent: Sent) -> dict[int, Waits]:
    """By rank; of those whose proxies had something to do."""
    found: dict[int, Waits] = {}
    for rank, tallies in sent:
        own = Waits()
        for tally in tallies:
            own.gpu += tally.gpu_ns * NS
            own.peer += tally.peer_ns * NS
            own.network += tally.network_ns * NS
            own.data += tally.data_ns * NS
            own.sent_bytes += tally.sent_bytes
        if own.gpu or own.peer or own.network or own.data:
            found[rank] = own
    return found


def port_waits(reported: OfPorts) -> dict[int, Waits]:
    """By rank, where its network ports tell: the time that they were busy, and what they sent in it."""
    found: dict[int, Waits] = {}
    for rank, ports in reported:
        busy_ns = sum(port.busy_ns for port in ports)
        if busy_ns:
            found[rank] = Waits(network=busy_ns * NS, sent_bytes=sum(port.busy_bytes for port in ports))
    return found


def slowest_ports(reported: OfPorts) -> dict[int, str]:
    """By rank the port in which a byte takes longest, of those that were busy."""
    found: dict[int, str] = {}
    for rank, ports in reported:
        busy = [port for port in ports if port.busy_ns and port.busy_bytes]
        if busy:
            found[rank] = max(busy, key=lambda port: port.busy_ns / port.busy_bytes).port
    return found


def _operation(tally: trace_pb2.NcclTally) -> str:
    return MESSAGE if tally.seat.HasField("peer") else tally.operation


def _ends(rank: int, tally: trace_pb2.NcclTally, communicator: Joined) -> tuple[str, Ranks, Ranks]:
    if not tally.seat.HasField("peer") or tally.seat.peer >= len(communicator.ranks):
        return communicator.id, communicator.ranks, communicator.ranks
    peer = communicator.ranks[tally.seat.peer]
    sender, receiver = (rank, peer) if tally.sending else (peer, rank)
    return f"p2p:{sender}-{receiver}", (sender,), (receiver,)
