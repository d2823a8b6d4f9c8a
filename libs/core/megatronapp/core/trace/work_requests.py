"""Megatrace's telemetry of RDMA work requests: a CSV a network port (`<host>_<nic>_Port<n>_A.log`, and `_B`), a row for
each send that ended. What a port's rows say of its speed. Pure.

    Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,SendWrCounter,RemainWrDataSize,Timestamp

By sii-research/Megatrace, trace/megatrace_nccl.patch (timer_log.cc, net_ib.cc): Group is NCCL's hash of the
communicator, FromRank and ToRank are places in it, FuncTimes numbers its operations. Bandwidth is the port's over a
window of sends of one operation, in whole Gibit/s; SendWrCounter and RemainWrDataSize are how many sends, and how many
bytes, are still outstanding (bytes from before the telemetry began are never taken off: where no send is outstanding
none are). Timestamp is when the send ended, in nanoseconds since the epoch. Time is the same to the second, by the
host's zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from megatronapp.core.trace.limits import MAX_COUNT, MAX_TIME_NS, MAX_WORLD

HEADER = (
    "Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,SendWrCounter,RemainWrDataSize,Timestamp"
)
BYTES_PER_SECOND = (1 << 30) / 8
"""Of one in Bandwidth."""
NS = 1e-9
_PORT = re.compile(r"(.+?)[-_]Port(\d{1,6})[-_][AB]\.log")


@dataclass(frozen=True, slots=True)
class Send:
    """One that ended."""

    communicator: int
    """NCCL's hash."""
    place: int
    """Of the sender, in the communicator."""
    peer: int | None
    """The place that it went to; None: not told."""
    operation: int
    """Its number."""
    bandwidth: float
    """Bytes a second."""
    outstanding_bytes: int
    """After it."""
    ended_ns: int
    """Since the epoch."""


def port_name(file_name: str) -> str | None:
    """As "host_mlx5_0 port 0"; None for a file of anything else."""
    found = _PORT.fullmatch(file_name)
    return f"{found[1]} port {found[2]}" if found else None


def parse(row: str) -> Send:
    """Raises ValueError for what is no row."""
    _, group, place, to, _, _, operation, _, _, bandwidth, sends, outstanding, ended = row.split(",")
    send = Send(
        communicator=int(group) & ((1 << 64) - 1),
        place=int(place),
        peer=peer if 0 <= (peer := int(to)) < MAX_WORLD else None,
        operation=int(operation),
        bandwidth=int(bandwidth) * BYTES_PER_SECOND,
        outstanding_bytes=max(0, int(outstanding)) if int(sends) > 0 else 0,
        ended_ns=int(ended),
    )
    numbers = (send.operation, int(bandwidth), send.outstanding_bytes)
    if not (0 <= send.place < MAX_WORLD and 0 < send.ended_ns <= MAX_TIME_NS):
        raise ValueError("a place or a time is out of range")
    if not all(0 <= number <= MAX_COUNT for number in numbers):
        raise ValueError("a number is out of range")
    return send


@dataclass(frozen=True, slots=True)
class Busy:
    """What a port did while more was outstanding: its speed, whoever keeps it waiting at other times."""

    sends: int = 0
    seconds: float = 0.0
    sent_bytes: float = 0.0

    def __add__(self, other: Busy) -> Busy:
        return Busy(self.sends + other.sends, self.seconds + other.seconds, self.sent_bytes + other.sent_bytes)

    @property
    def seconds_per_byte(self) -> float | None:
        """None: it was never busy, or too slow for Bandwidth's unit to tell."""
        return self.seconds / self.sent_bytes if self.sent_bytes > 0 and self.seconds > 0 else None


def busy(sends: Iterable[Send]) -> Busy:
    """sends: of one port, as they stand in its files.

    The time from a send's end to the next one's is the port's own where more was outstanding. How large a send is no
    row tells: the mean of its operation's, by bandwidth over time.
    """
    before: dict[int, Send] = {}
    count, busy_ns, known, known_bytes = 0, 0, 0, 0.0
    for send in sends:
        last = before.get(send.communicator)
        before[send.communicator] = send
        if last is None or last.operation != send.operation or send.ended_ns <= last.ended_ns:
            continue
        passed_ns = send.ended_ns - last.ended_ns
        known, known_bytes = known + 1, known_bytes + send.bandwidth * passed_ns * NS
        if last.outstanding_bytes > 0:
            count, busy_ns = count + 1, busy_ns + passed_ns
    return Busy(count, busy_ns * NS, count * known_bytes / known) if known else Busy()
