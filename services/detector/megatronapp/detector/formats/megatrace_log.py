"""One rank's log as Megatrace writes it: its lines as calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatronapp.core.errors import DataError

MAX_FILE_BYTES = 64 << 20
"""A ring of 10,000 lines of 128 bytes is 1.3 MB; it may be saved several times."""
RING_LINES = 10_000
MESSAGES = SEND, RECV = "Send", "Recv"

_LINE = re.compile(
    rb"\[save_count (?P<save>\d{1,12})\] \[(?P<seconds>\d{1,10})\.(?P<ns>\d{1,9})\] \[Rank (?P<rank>\d{1,9})\] "
    rb"Fun (?P<operation>\w{1,40}) Data (?P<count>\d{1,19}) stream (?P<stream>\S{1,40}) "
    rb"opCount (?P<number>[0-9a-fA-F]{1,16})(?: groupHash (?P<group>\S{1,40}))?\s*"
)
NS = 10**9


@dataclass(frozen=True, slots=True, order=True)
class Call:
    number: int
    """opCount."""
    at_ns: int
    """The host's clock."""
    operation: str
    count: int
    """Elements."""
    group: str
    """groupHash; the stream where a line has none."""


@dataclass(frozen=True, slots=True)
class RankLog:
    calls: Mapping[str, tuple[Call, ...]]
    """By communicator, in the order of their numbers, each once."""
    messages: Mapping[tuple[str, str], int]
    """How many sends and receives it has called, by communicator."""
    history: tuple[Call, ...]
    """All of them, in order of time."""
    hashed: bool
    """Its lines name communicators."""
    lines: int
    cut: bool
    """Its last line is none: it was not written to its end."""

    @property
    def overwritten(self) -> bool:
        return self.lines >= RING_LINES


def read_log(rank: int, path: Path) -> RankLog:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise DataError(f"{path} has {size} bytes; {MAX_FILE_BYTES >> 20} MiB are the most that are read")
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip(b"\0 \t\r")]
    found = [match for line in lines if (match := _LINE.fullmatch(line))]
    if not found:
        raise DataError(f"{path}: holds no call of NCCL; it is not one of Megatrace's logs")
    if others := {int(match["rank"]) for match in found} - {rank}:
        raise DataError(f"{path}: has lines of rank {min(others)}; each rank's log is a file of its own")
    base = 16 if any(re.search(rb"[a-fA-F]", match["number"]) for match in found) else 10
    calls: defaultdict[str, set[Call]] = defaultdict(set)
    messages: defaultdict[tuple[str, str], set[Call]] = defaultdict(set)
    for match in found:
        operation, group = match["operation"].decode(), (match["group"] or match["stream"]).decode(errors="replace")
        at_ns = int(match["seconds"]) * NS + int(match["ns"])
        call = Call(int(match["number"], base), at_ns, operation, int(match["count"]), group)
        (messages[group, operation] if operation in MESSAGES else calls[group]).add(call)
    return RankLog(
        calls={group: _each_once(of) for group, of in calls.items()},
        messages={key: len(of) for key, of in messages.items()},
        history=tuple(sorted(set().union(*calls.values(), *messages.values()), key=lambda call: call.at_ns)),
        hashed=all(match["group"] is not None for match in found),
        lines=len(lines),
        cut=_LINE.fullmatch(lines[-1]) is None,
    )


def _each_once(calls: set[Call]) -> tuple[Call, ...]:
    """In order of their numbers; of those with one number, which were called together, the first."""
    ordered: dict[int, Call] = {}
    for call in sorted(calls):
        ordered.setdefault(call.number, call)
    return tuple(ordered.values())
