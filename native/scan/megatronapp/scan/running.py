"""The ranks that run on this host now, as their segments tell (docs/agent.md)."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "/memfd:megatronapp"
_MAGIC = b"MGTAPP01"
_HEADER = struct.Struct("<8s2I8xQ")  # magic, layout, pid, offset of the state
_STATE_BYTES = 128
_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class RunningRank:
    pid: int
    step: int
    marks: int
    """How often its training thread entered the recorder in the newest step."""


def running_ranks(proc: Path = Path("/proc")) -> Iterator[RunningRank]:
    """Those of processes that this user may look at, once a step of theirs has ended.

    A process is one rank, however many descriptors it holds of its segment, or of earlier ones.
    """
    for process in proc.iterdir():
        if process.name.isdecimal():
            # An agent holds its ranks' segments, too.
            own = (rank for rank in _segments(process) if rank.marks and rank.pid == int(process.name))
            newest = max(own, key=lambda rank: rank.step, default=None)
            if newest is not None:
                yield newest


def _segments(process: Path) -> Iterator[RunningRank]:
    descriptors: list[Path] = []
    with contextlib.suppress(OSError):  # another user's, or gone meanwhile
        descriptors = list((process / "fd").iterdir())
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(descriptor.readlink()).startswith(_PREFIX) and (rank := _read(descriptor)) is not None:
                yield rank


def _read(segment: Path) -> RunningRank | None:
    with segment.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        magic, layout, pid, state = _HEADER.unpack(header)
        if (magic, layout) != (_MAGIC, _LAYOUT) or state + _STATE_BYTES > os.fstat(file.fileno()).st_size:
            return None
        file.seek(state)
        fields = file.read(_STATE_BYTES)
    if len(fields) < _STATE_BYTES:
        return None
    (step,), (marks,) = struct.unpack_from("<q", fields, 8), struct.unpack_from("<Q", fields, 80)
    return RunningRank(pid, step, marks)
