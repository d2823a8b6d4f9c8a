"""Files of Megatrace's telemetry of RDMA work requests (core/trace/work_requests.py): which ports send slowly, and
which sends do not end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.trace.work_requests import HEADER, NS, Send, busy, parse, port_name
from megatronapp.detector.formats.understood import understood

MAX_FILE_BYTES = 32 << 20
"""Megatrace changes to the other file at 10 MB."""
MIN_SENDS, MIN_PORTS = 20, 3
SLOWER = 1.25
"""Of what a byte takes at a port that has more to send, beside the others: how much it sends does not matter."""
STALLED_SECONDS = 5.0
"""The other ports go on for so long."""


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    """Host, card and port."""
    places: tuple[int, ...]
    """Those that send through it."""
    sends: int
    busy_sends: int
    """Before which more was outstanding."""
    seconds_per_byte: float | None
    """Of those; None: not known."""
    last: Send


@dataclass(frozen=True, slots=True)
class Ports:
    ports: tuple[Port, ...]
    of_job: bool
    """They send in one communicator: places in it are taken for the job's ranks. In several a place tells no rank."""


@dataclass(frozen=True, slots=True)
class SlowPort:
    port: Port
    effect_ratio: float
    """What a byte takes here ÷ what it takes at the others; of a stalled send 1."""
    stalled_seconds: float
    """The others went on for so long after its last send, which left bytes outstanding; 0: it goes on too."""


def find_files(folder: Path) -> dict[str, list[Path]]:
    """By port, the files of a folder; empty when it holds none."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        name = port_name(path.name)
        if name and path.is_file():
            with path.open("rb") as file:
                if file.read(len(HEADER)) == HEADER.encode():
                    found[name].append(path)
    return dict(found)


def read(files: Mapping[str, list[Path]]) -> Ports:
    """Raises DataError."""
    sent = {name: [list(_sends(path)) for path in paths] for name, paths in files.items()}
    ports = tuple(_port(name, of_files) for name, of_files in sent.items() if any(of_files))
    if not ports:
        raise DataError(f"{next(iter(files.values()))[0]}: holds no send that completed")
    communicators = {send.communicator for of_files in sent.values() for sends in of_files for send in sends}
    return Ports(ports, of_job=len(communicators) == 1)


def _port(name: str, of_files: list[list[Send]]) -> Port:
    """Which of the files is older, and written over in turn, its rows tell."""
    in_order = sorted(filter(None, of_files), key=lambda sends: sends[0].ended_ns)
    sends = list(chain.from_iterable(in_order))
    was_busy = busy(sends)
    return Port(
        name=name,
        places=tuple(sorted({send.place for send in sends})),
        sends=len(sends),
        busy_sends=was_busy.sends,
        seconds_per_byte=was_busy.seconds_per_byte,
        last=max(sends, key=lambda send: send.ended_ns),
    )


def _sends(path: Path) -> Iterator[Send]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; Megatrace's files have 10 MB")
    lines = path.read_text(errors="replace").replace("\0", "").splitlines()
    for number, row in enumerate(lines[1:], 2):
        if row.count(",") != HEADER.count(",") and number == len(lines):
            return  # it was being written
        with understood(path, f"line {number} can't be understood"):
            send = parse(row)
        yield send


def slow(ports: tuple[Port, ...]) -> list[SlowPort]:
    """Ports that send more slowly than the others, or whose last send does not end while the others go on."""
    known = [port for port in ports if port.sends >= MIN_SENDS]
    found = [_judged(port, [other for other in known if other is not port]) for port in known]
    return [each for each in found if each is not None] if len(known) >= MIN_PORTS else []


def _judged(port: Port, others: list[Port]) -> SlowPort | None:
    silent = float(np.median([other.last.ended_ns for other in others]) - port.last.ended_ns) * NS if others else 0.0
    if port.last.outstanding_bytes > 0 and silent >= STALLED_SECONDS:
        return SlowPort(port, 1.0, silent)
    usual = [each.seconds_per_byte for each in others if each.seconds_per_byte and each.busy_sends >= MIN_SENDS]
    if port.seconds_per_byte is None or port.busy_sends < MIN_SENDS or len(usual) < MIN_PORTS - 1:
        return None
    ratio = port.seconds_per_byte / float(np.median(usual))
    return SlowPort(port, ratio, 0.0) if ratio >= SLOWER else None
