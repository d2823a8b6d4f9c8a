"""Megatrace's telemetry of RDMA work requests: a CSV a network port (`<host>_<nic>_Port<n>_A.log`, and `_B`), a row for
each send that completed.

    Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,SendWrCounter,RemainWrDataSize,Timestamp

By sii-research/Megatrace, trace/megatrace_nccl.patch (timer_log.cc): Bandwidth is the port's over a window of sends,
SendWrCounter and RemainWrDataSize are what the sender still has outstanding, FuncTimes counts the operations,
Timestamp is how long the send took, in nanoseconds, whatever its name says. Time is the host's, to the second.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.detector.formats.understood import understood

HEADER = (
    "Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,SendWrCounter,RemainWrDataSize,Timestamp"
)
MAX_FILE_BYTES = 32 << 20
"""Megatrace changes to the other file at 10 MB."""
MIN_SENDS, MIN_PORTS = 20, 3
SLOWER = 1.25
"""Of a port beside the others, in bandwidth and in the time of a send: less load lowers the bandwidth alone."""
STALLED_SECONDS = 5.0
"""The other ports go on for so long."""
NS = 1e-9
_PORT = re.compile(r"(.+?)[-_]Port(\d+)[-_][AB]\.log")


@dataclass(frozen=True, slots=True)
class Send:
    """One that completed."""

    at_seconds: float
    """Since the epoch."""
    rank: int
    peer: int | None
    """The rank that it went to; None: not told."""
    operation: int
    """Its number."""
    bandwidth: float
    outstanding_bytes: int
    """After it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    """Host, card and port."""
    ranks: tuple[int, ...]
    """Those that send through it."""
    sends: int
    bandwidth: float
    """Median, in the unit that Megatrace writes."""
    send_seconds: float
    """Median."""
    last: Send


@dataclass(frozen=True, slots=True)
class SlowPort:
    port: Port
    effect_ratio: float
    """The others' bandwidth ÷ its own; of a stalled send 1."""
    stalled_seconds: float
    """The others went on for so long after its last send, which left bytes outstanding; 0: it goes on too."""


def find_files(folder: Path) -> dict[str, list[Path]]:
    """By port, the files of a folder; empty when it holds none."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        name = _PORT.fullmatch(path.name)
        if name and path.is_file():
            with path.open("rb") as file:
                if file.read(len(HEADER)) == HEADER.encode():
                    found[f"{name[1]} port {name[2]}"].append(path)
    return dict(found)


def read(files: Mapping[str, list[Path]]) -> list[Port]:
    """Raises DataError."""
    ports = [port for name, paths in files.items() if (port := _port(name, paths)) is not None]
    if not ports:
        raise DataError(f"{next(iter(files.values()))[0]}: holds no send that completed")
    return ports


def _port(name: str, paths: list[Path]) -> Port | None:
    sends = [send for path in paths for send in _sends(path)]
    if not sends:
        return None
    last = max(sends, key=lambda send: send.at_seconds)
    return Port(
        name=name,
        ranks=tuple(sorted({send.rank for send in sends})),
        sends=len(sends),
        bandwidth=float(np.median([send.bandwidth for send in sends])),
        send_seconds=float(np.median([send.seconds for send in sends])),
        last=last,
    )


def _sends(path: Path) -> Iterator[Send]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; Megatrace's files have 10 MB")
    lines = path.read_text(errors="replace").replace("\0", "").splitlines()
    width = HEADER.count(",") + 1
    for number, row in enumerate(csv.reader(lines[1:]), 2):
        if len(row) != width and number == len(lines):
            return  # it was being written
        with understood(path, f"line {number} can't be understood"):
            send = _send(row)
        yield send


def _send(row: list[str]) -> Send:
    at, _, rank, to, _, _, operation, _, _, bandwidth, _, outstanding, took = row
    send = Send(
        at_seconds=datetime.strptime(at, "%Y%m%d%H%M%S").timestamp(),
        rank=int(rank),
        peer=peer if 0 <= (peer := int(to)) < MAX_WORLD else None,
        operation=int(operation),
        bandwidth=float(int(bandwidth)),
        outstanding_bytes=int(outstanding),
        seconds=int(took) * NS,
    )
    if not 0 <= send.rank < MAX_WORLD or send.bandwidth < 0 or send.seconds < 0:
        raise ValueError("a number is out of range")
    return send


def slow(ports: list[Port]) -> list[SlowPort]:
    """Ports that send more slowly than the others, or whose last send does not end while the others go on."""
    known = [port for port in ports if port.sends >= MIN_SENDS]
    found = [_judged(port, [other for other in known if other is not port]) for port in known]
    return [each for each in found if each is not None] if len(known) >= MIN_PORTS else []


def _judged(port: Port, others: list[Port]) -> SlowPort | None:
    silent = float(np.median([other.last.at_seconds for other in others])) - port.last.at_seconds if others else 0.0
    if port.last.outstanding_bytes > 0 and silent >= STALLED_SECONDS:
        return SlowPort(port, 1.0, silent)
    bandwidth = float(np.median([other.bandwidth for other in others])) if others else 0.0
    seconds = float(np.median([other.send_seconds for other in others])) if others else 0.0
    if 0 < SLOWER * port.bandwidth <= bandwidth and port.send_seconds >= SLOWER * seconds > 0:
        return SlowPort(port, bandwidth / port.bandwidth, 0.0)
    return None
