"""Our own trace folders, `<dir>/<job>/attempt-<n>/rank-<r>.pb`: the messages of a job's ranks in order of time."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.trace import file
from megatronapp.detector.formats.understood import understood
from megatronapp.v1 import trace_pb2

_RANK_FILE = re.compile(r"rank-(\d+)\.pb")
_ATTEMPT_FOLDER = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The files of one attempt, by rank."""

    job: str
    number: int
    files: tuple[Path, ...] = field(repr=False)

    def messages(self) -> Iterator[trace_pb2.RankMessage]:
        return read_messages(self)

    def standstill(self) -> None:
        """Their messages have heartbeats."""


def find_attempts(path: Path) -> list[Attempt]:
    """The attempts of the one job below a folder, in order; none when it holds no trace of ours.

    The folder may be the trace folder, a job's or an attempt's. Raises UsageError when it holds several jobs.
    """
    folders: defaultdict[Path, list[tuple[int, Path]]] = defaultdict(list)
    for candidate in sorted(path.rglob("rank-*.pb")):
        name = _RANK_FILE.fullmatch(candidate.name)
        if name and _ATTEMPT_FOLDER.fullmatch(candidate.resolve().parent.name):
            folders[candidate.parent].append((int(name[1]), candidate))
    jobs = sorted({str(folder.parent) for folder in folders})
    if len(jobs) > 1:
        raise UsageError(f"{path} holds traces of {len(jobs)} jobs; name the folder of one of them: {', '.join(jobs)}")
    attempts = [
        Attempt(_job_name(folder), _attempt_number(folder), tuple(each for _, each in sorted(files)))
        for folder, files in folders.items()
    ]
    return sorted(attempts, key=lambda attempt: attempt.number)


def read_messages(attempt: Attempt) -> Iterator[trace_pb2.RankMessage]:
    """Every message but the detail, as the collector would have sent them on, in order of time.

    `received_unix_ns` is when the message was made, on the clock of its own host. Raises DataError.
    """
    return heapq.merge(*(_rank_messages(path) for path in attempt.files), key=lambda m: m.received_unix_ns)


def _rank_messages(path: Path) -> Iterator[trace_pb2.RankMessage]:
    identity, placement, newest = None, trace_pb2.Placement(), 0
    for message in file.read(path):
        body = message.WhichOneof("body")
        if body == "hello":
            identity, placement = message.hello.identity, message.hello.placement
        if identity is None:
            raise DataError(f"{path}: does not begin with a hello; the file is damaged")
        if body == "batch":
            continue
        with understood(path):
            newest = max(newest, _made_at(message, placement))
            found = trace_pb2.RankMessage(
                identity=identity,
                message=message,
                received_unix_ns=newest,
                clock_offset_ns=placement.host_unix_ns - placement.host_clock_ns,
                clock_error_ns=-1,
            )
        yield found


def _made_at(message: trace_pb2.TraceMessage, placement: trace_pb2.Placement) -> int:
    body = message.WhichOneof("body")
    if body == "heartbeat":
        return message.heartbeat.unix_ns
    if body == "summary":
        ended = message.summary.start_ns + message.summary.duration_ns
        return placement.host_unix_ns - placement.host_clock_ns + ended
    return placement.host_unix_ns


def _job_name(folder: Path) -> str:
    """`<namespace>/<name>`, as the two folders above the attempt's are called."""
    job = folder.resolve().parent
    return f"{job.parent.name}/{job.name}"


def _attempt_number(folder: Path) -> int:
    name = _ATTEMPT_FOLDER.fullmatch(folder.resolve().name)
    return int(name[1]) if name else 1
