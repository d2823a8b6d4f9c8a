"""One rank's log as Megatrace writes it: its lines as calls.

Its patched NCCL writes `rank_<r>.log`, with the lines of megatrace.py. Its interceptor, which came later, writes
`megatrace_<time>_rank_<r>.log`, or `<pod>_<time>_<pid>.log`, whose lines alone tell the rank; when one is full it is
renamed to `….log.1`, and so on, and begun again. Its lines have every word in brackets, and begin with the node:

    [10.0.0.1] [node1] [save_count 1] [1730000000.000001234] [Rank 3] [PCI 0000:18:00.0] [Func ncclAllReduce]
    [Data 4096] [stream 0x7f..] [opCount 57] [groupHash 0x83..]
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from megatronapp.core.errors import DataError

MAX_FILE_BYTES = 64 << 20
"""A ring of 10,000 lines of 128 bytes is 1.3 MB; it may be saved several times."""
RING_LINES = 10_000
MESSAGES = SEND, RECV = "Send", "Recv"

_PATCHED = re.compile(
    rb"\[save_count (?P<save>\d{1,12})\] \[(?P<seconds>\d{1,10})\.(?P<ns>\d{1,9})\] \[Rank (?P<rank>\d{1,9})\] "
    rb"Fun (?P<operation>\w{1,40}) Data (?P<count>\d{1,19}) stream (?P<stream>\S{1,40}) "
    rb"opCount (?P<number>[0-9a-fA-F]{1,16})(?: groupHash (?P<group>\S{1,40}))?\s*"
)
_INTERCEPTED = re.compile(
    rb"(?:\[[^\]]{0,256}\] ){1,16}\[save_count (?P<save>\d{1,12})\] \[(?P<seconds>\d{1,10})\.(?P<ns>\d{1,9})\] "
    rb"\[Rank (?P<rank>\d{1,9})\] \[PCI [^\]]{1,64}\] \[Func? (?:nccl)?(?P<operation>\w{1,40})\] "
    rb"\[Data (?P<count>\d{1,19})\] \[stream (?P<stream>[^\]\s]{1,40})\] \[opCount (?P<number>\d{1,19})\]"
    rb"(?: \[groupHash (?P<group>[^\]\s]{1,40})\])?\s*"
)
_OLDER = re.compile(r"\.(\d{1,4})")
MAX_LINE_BYTES = 8192
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


def rank_of(path: Path) -> int | None:
    """The rank that the first line of an interceptor's log tells; None: it is none."""
    with path.open("rb") as file:
        match = _INTERCEPTED.fullmatch(file.readline(MAX_LINE_BYTES))
    return int(match["rank"]) if match else None


def read_log(rank: int, path: Path) -> RankLog:
    """Of a file, and of those beside it that were full before. Raises DataError."""
    paths = [*_older(path), path]
    size = sum(each.stat().st_size for each in paths)
    if size > MAX_FILE_BYTES:
        raise DataError(f"{path} has {size} bytes; {MAX_FILE_BYTES >> 20} MiB are the most that are read")
    content = b"\n".join(each.read_bytes() for each in paths)
    lines = [line for line in content.split(b"\n") if line.strip(b"\0 \t\r")]
    found = [match for line in lines if (match := _match(line))]
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
        cut=_match(lines[-1]) is None,
    )


def _older(path: Path) -> list[Path]:
    """What the interceptor renamed, the oldest first."""
    beside = (each for each in path.parent.glob(f"{escape(path.name)}.*") if each.is_file())
    numbered = [(int(match[1]), each) for each in beside if (match := _OLDER.fullmatch(each.name[len(path.name) :]))]
    return [each for _, each in sorted(numbered, reverse=True)]


def _match(line: bytes) -> re.Match[bytes] | None:
    return _PATCHED.fullmatch(line) or _INTERCEPTED.fullmatch(line)


def _each_once(calls: set[Call]) -> tuple[Call, ...]:
    """In order of their numbers; of those with one number, which were called together, the first."""
    ordered: dict[int, Call] = {}
    for call in sorted(calls):
        ordered.setdefault(call.number, call)
    return tuple(ordered.values())
