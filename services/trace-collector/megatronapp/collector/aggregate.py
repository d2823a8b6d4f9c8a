"""`megatronapp trace aggregate`: the ranks' recordings as one timeline, without a collector.

Takes our own trace folders (`<dir>/<job>/attempt-<n>/rank-<r>.pb`), MegaScan's files per rank and its merged traces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from pathlib import Path

from megatronapp.collector import export
from megatronapp.collector.clocks import Clocks
from megatronapp.collector.dedup import SeenNumbers
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.megascan import find_files, read_megascan
from megatronapp.core.trace.validate import check_message
from megatronapp.core.wording import counted
from megatronapp.v1 import trace_pb2


@dataclass
class Recording:
    """Spans in job time, ordered by step and rank, and who the ranks are."""

    placements: dict[int, trace_pb2.Placement] = field(default_factory=dict)
    spans: list[RankSpans] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Files that are damaged, and why; what stood before the damage is in."""


def aggregate(source: Path, output: Path) -> Recording:
    """Write the timeline of `source` to `output`; the suffix .json or .pftrace names the format.

    Raises UsageError for another suffix, NotFoundError when there is nothing to read, DataError when none of it can be
    understood, UnavailableError when the output can't be written. A file that was there stays as it was on an error.
    """
    writer = export.SUFFIXES.get(output.suffix)
    if writer is None:
        raise UsageError(f"{output}: the name must end in {' or '.join(export.SUFFIXES)}")
    recording = read(source)
    temporary = output.with_name(output.name + ".part")
    try:
        with temporary.open("wb") as file:
            for piece in writer(recording.spans, recording.placements):
                file.write(piece)
        temporary.replace(output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UnavailableError(f"{output} can't be written: {error.strerror}") from error
    return recording


def read(source: Path) -> Recording:
    """A recording of any of the three kinds. Raises as aggregate does."""
    if not source.exists():
        raise NotFoundError(f"{source}: no such file or folder")
    if files := _own_files(source):
        return _read_own(files)
    if find_files(source):
        return _read_megascan(source)
    raise NotFoundError(
        f"{source} holds neither <job>/attempt-<n>/rank-<r>.pb nor benchmark-data-*-pipeline-*-tensor-*.json"
    )


def main(argv: list[str] | None = None) -> int:
    """The command line: `-b DIR -o FILE`. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="megatronapp trace aggregate", description="Merge the ranks' traces.")
    parser.add_argument("-b", "--benchmark-dir", type=Path, required=True, help="folder or file with the traces")
    parser.add_argument("-o", "--output", type=Path, required=True, help="timeline to write: .json or .pftrace")
    options = parser.parse_args(argv)
    try:
        recording = aggregate(options.benchmark_dir, options.output)
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for problem in recording.unreadable:
        print(f"warning: {problem}", file=sys.stderr)
    steps = {item.step for item in recording.spans}
    count = sum(item.rows for item in recording.spans)
    counts = {"rank": len(recording.placements), "step": len(steps), "span": count}
    print(f"{options.output}: {', '.join(counted(number, what) for what, number in counts.items())}")
    return 0


def _own_files(source: Path) -> list[Path]:
    """The ranks' files of one attempt: the newest, when the folder has several."""
    if source.is_file():
        return [source] if source.suffix == ".pb" else []
    files = sorted(source.glob("**/rank-*.pb"))
    folders = {path.parent for path in files}
    jobs = {folder.parent for folder in folders if folder != source}
    if len(jobs) > 1:
        names = ", ".join(sorted(str(job.relative_to(source)) for job in jobs))
        raise UsageError(f"{source} holds several jobs ({names}); name one of these folders")
    newest = max(folders, key=_attempt_number, default=None)
    return [path for path in files if path.parent == newest]


def _attempt_number(folder: Path) -> int:
    number = folder.name.removeprefix("attempt-")
    return int(number) if number.isdigit() else 0


@dataclass
class _RankFile:
    """One rank's batches, duplicates left out, and its communicators."""

    hello: trace_pb2.Hello = field(default_factory=trace_pb2.Hello)
    communicators: dict[int, trace_pb2.Communicator] = field(default_factory=dict)
    batches: list[trace_pb2.TraceBatch] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.hello.identity.rank


def _read_own(files: list[Path]) -> Recording:
    recording = Recording()
    ranks = [rank for path in files if (rank := _read_rank(path, recording.unreadable)) is not None]
    if not ranks:
        raise DataError("no rank's file could be read: " + "; ".join(recording.unreadable))
    clocks = Clocks()
    for rank in ranks:
        recording.placements[rank.rank] = rank.hello.placement
        clocks.hello(rank.rank, rank.hello.placement, rank.hello.device)
    for rank, batch in _by_step(ranks):
        ids = {index: communicator.id for index, communicator in rank.communicators.items()}
        clocks.add(rank.rank, batch, tuple(batch.names), span_columns(batch), ids)
    clocks.flush()
    for rank, batch in _by_step(ranks):
        if batch.count:
            recording.spans.append(_in_job_time(rank, batch, clocks))
    return recording


def _by_step(ranks: list[_RankFile]) -> Iterator[tuple[_RankFile, trace_pb2.TraceBatch]]:
    """All batches ordered by step, then rank, as they came within a rank's step."""
    streams = ([(batch.step, rank.rank, n, rank, batch) for n, batch in enumerate(rank.batches)] for rank in ranks)
    return ((rank, batch) for *_, rank, batch in merge(*streams, key=lambda row: row[:3]))


def _read_rank(path: Path, problems: list[str]) -> _RankFile | None:
    """None when the file does not say whose it is."""
    rank = _RankFile()
    seen: dict[int, SeenNumbers] = {}
    try:
        for message in trace_file.read(path):
            try:
                check_message(message)
            except DataError as error:
                problems.append(f"{path}: {error}")
                continue
            _take(rank, message, seen.setdefault(rank.hello.identity.incarnation, SeenNumbers()))
    except (DataError, OSError) as error:
        problems.append(str(error))
    if not rank.hello.HasField("identity"):
        problems.append(f"{path}: no Hello in it; it does not say whose it is")
        return None
    rank.batches.sort(key=lambda batch: batch.step)
    return rank


def _take(rank: _RankFile, message: trace_pb2.TraceMessage, seen: SeenNumbers) -> None:
    if message.seq and not seen.add(message.seq):
        return
    if message.HasField("hello"):
        rank.hello = message.hello
    body = getattr(message, message.WhichOneof("body") or "", None)
    for communicator in getattr(body, "communicators", ()):
        rank.communicators[communicator.index] = communicator
    if message.HasField("batch"):
        rank.batches.append(message.batch)


def _in_job_time(rank: _RankFile, batch: trace_pb2.TraceBatch, clocks: Clocks) -> RankSpans:
    start_ns = span_columns(batch).first("start_ns")
    offset_ns = clocks.at(rank.rank, start_ns).offset_ns
    return RankSpans.of(rank.rank, batch, rank.communicators.values(), offset_ns)


def _read_megascan(source: Path) -> Recording:
    traces = read_megascan(source)
    rows = chain.from_iterable(((step, trace.rank, batch) for step, batch in trace.steps.items()) for trace in traces)
    spans = [
        RankSpans.of(rank, batch, batch.communicators)
        for _, rank, batch in sorted(rows, key=lambda row: row[:2])
        if batch.count
    ]
    return Recording({trace.rank: trace.placement for trace in traces}, spans)
