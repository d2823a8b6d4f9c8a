"""The trace-collector's store, as it leaves it on disk: step summaries of a run, as its ranks sent them, and
their last heartbeats.

    <store>/manifest.json                                           `write`: the last complete write
    <store>/<run>/attempt-<n>/attempt.pb                            a JobRecord, then each rank's Hello and heartbeats
    <store>/<run>/attempt-<n>/{steps,summaries}-<write>-….parquet    rows in the order in which they arrived

A row of `steps` is a step of a rank; its rows of `summaries` follow each other, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import proto
from google.protobuf.message import DecodeError

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.json_file import load_json_file
from megatronapp.core.trace.columns import SUMMARY_DTYPES, fill_summary
from megatronapp.detector.formats.understood import one_line, understood
from megatronapp.detector.standstill import LastHeartbeats, Standstill, standstill
from megatronapp.v1 import trace_pb2

MANIFEST, NOTE = "manifest.json", "attempt.pb"
PLACES = ("", "store", "collector/store")
"""Where the store lies below the folder that is named: itself, the collector's, or that of `megatronapp up`."""
PROGRESS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tflops_per_gpu")
MAX_ROWS = 100_000_000
"""Of one file; the collector writes one each 50 steps."""
_ATTEMPT = re.compile(r"attempt-(\d+)")
_PART = re.compile(r"(steps|summaries)-(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """One attempt of a run. `hellos` and `heartbeats` are by rank."""

    job: str
    number: int
    folder: Path
    hellos: dict[int, trace_pb2.RankMessage]
    heartbeats: dict[int, LastHeartbeats]
    last_write: int

    def messages(self) -> Iterator[trace_pb2.RankMessage]:
        """Hellos, then every step summary, in the order of arrival. Raises DataError."""
        newest = 0
        for rank, hello in sorted(self.hellos.items()):
            newest = max(newest, hello.message.hello.placement.host_unix_ns)
            yield self._message(rank, newest, 0, hello=hello.message.hello)
        sent = dict.fromkeys(self.hellos, 0)
        for steps, summaries in self._parts():
            for row, summary in self._rows(steps, summaries):
                rank = row["rank"]
                if rank not in self.hellos:
                    continue  # its Hello could not be kept
                with understood(self.folder):
                    place = self.hellos[rank].message.hello.placement
                    ended = summary.start_ns + summary.duration_ns
                    newest = max(newest, place.host_unix_ns - place.host_clock_ns + ended)
                    sent[rank] += 1
                    message = self._message(rank, newest, sent[rank], summary=summary)
                    message.clock_offset_ns, message.clock_error_ns = row["clock_offset_ns"], row["clock_error_ns"]
                yield message

    def _rows(self, steps: Any, summaries: Any) -> Iterator[tuple[dict[str, Any], trace_pb2.StepSummary]]:
        rows = _summaries(steps, summaries, self._communicators())
        while True:
            with understood(self.folder):
                found = next(rows, None)
            if found is None:
                return
            yield found

    def standstill(self) -> Standstill | None:
        return standstill(self.heartbeats)

    def _message(self, rank: int, unix_ns: int, seq: int, **body: Any) -> trace_pb2.RankMessage:
        identity = self.hellos[rank].identity
        message = trace_pb2.TraceMessage(seq=seq, **body)
        return trace_pb2.RankMessage(identity=identity, message=message, received_unix_ns=unix_ns, clock_error_ns=-1)

    def _communicators(self) -> dict[int, dict[str, int]]:
        """By rank: index of each communicator."""
        return {rank: {c.id: c.index for c in m.message.hello.communicators} for rank, m in self.hellos.items()}

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        """The tables of each complete write, in order."""
        found: dict[int, dict[str, Path]] = {}
        for path in self.folder.iterdir():
            if (name := _PART.fullmatch(path.name)) and int(name[2]) <= self.last_write:
                found.setdefault(int(name[2]), {})[name[1]] = path
        for _, tables in sorted(found.items()):
            if len(tables) == 2:  # else one has expired
                yield _read(tables["steps"]), _read(tables["summaries"])


def find_attempts(path: Path) -> list[StoredAttempt]:
    """The attempts of the one run in a folder, in order; none when it is no store.

    The folder may be that of `megatronapp up`, the collector's, the store, a run's or an attempt's. Raises UsageError
    when it holds several runs, DataError when it is damaged.
    """
    store = next((path / place for place in PLACES if (path / place / MANIFEST).is_file()), None)
    if store is not None:
        notes = sorted(store.glob(f"*/attempt-*/{NOTE}"))
    else:
        notes = sorted([*path.glob(NOTE), *path.glob(f"attempt-*/{NOTE}")])
        store = next((each for each in path.resolve().parents if (each / MANIFEST).is_file()), None)
    if store is None:
        return []
    last_write = _last_write(store / MANIFEST)
    attempts = [_attempt(note, last_write) for note in notes]
    runs = {attempt.folder.parent: attempt.job for attempt in attempts}
    if len(runs) > 1:
        newest_first = sorted(runs, key=lambda folder: folder.stat().st_mtime, reverse=True)
        known = "".join(f"\n  {folder}  ({runs[folder]})" for folder in newest_first)
        raise UsageError(f"{path} holds {len(runs)} runs; name the folder of one, here the newest first:{known}")
    return sorted(attempts, key=lambda attempt: attempt.number)


def _last_write(manifest: Path) -> int:
    found = load_json_file(manifest)
    write = found.get("write", 0) if isinstance(found, dict) else None
    if not isinstance(write, int):
        raise DataError(f"{manifest} can't be read: it names no last write")
    return write


def _attempt(note: Path, last_write: int) -> StoredAttempt:
    source = BytesIO(note.read_bytes())
    name = _ATTEMPT.fullmatch(note.resolve().parent.name)
    hellos: dict[int, trace_pb2.RankMessage] = {}
    heartbeats: dict[int, LastHeartbeats] = {}
    try:
        record = proto.parse_length_prefixed(trace_pb2.JobRecord, source)
        while record and (message := proto.parse_length_prefixed(trace_pb2.RankMessage, source)) is not None:
            if message.message.HasField("hello"):
                hellos[message.identity.rank] = message
            elif message.message.seq:  # 0: an earlier version's goodbye, which tells nothing
                before = heartbeats.get(message.identity.rank)
                heartbeats[message.identity.rank] = LastHeartbeats(before.since if before else message, message)
    except (DecodeError, ValueError, OverflowError) as error:
        raise DataError(f"{note} can't be read: {error}") from error
    if record is None or name is None:
        raise DataError(f"{note} is not the note of an attempt")
    return StoredAttempt(record.job, int(name[1]), note.resolve().parent, hellos, heartbeats, last_write)


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_metadata(path).num_rows
        if rows > MAX_ROWS:
            raise DataError(f"{path} has {rows} rows; {MAX_ROWS} are the most of a file")
        return pq.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {one_line(error)}") from error


def _summaries(
    steps: Any, summaries: Any, communicators: dict[int, dict[str, int]]
) -> Iterator[tuple[dict[str, Any], trace_pb2.StepSummary]]:
    """Each row of `steps`, and the summary that it was made of together with its rows of `summaries`."""
    names, name = _texts(summaries["name"])
    ids, communicator = _texts(summaries["communicator"])
    columns = {
        each: summaries[each].to_numpy()
        for each in SUMMARY_DTYPES
        if each not in {"name", "communicator"} and each in summaries.column_names
    }
    keys = np.stack([summaries["step"].to_numpy(), summaries["rank"].to_numpy().astype(np.uint64)])
    borders = np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1 if keys.shape[1] else np.array([], np.int64)
    begins, ends = [0, *borders.tolist()], [*borders.tolist(), keys.shape[1]]
    blocks = {(int(keys[0, b]), int(keys[1, b])): slice(b, e) for b, e in zip(begins, ends, strict=True) if e > b}
    for row in steps.to_pylist():
        rows = blocks.get((row["step"], row["rank"]), slice(0, 0))
        index_of = communicators.get(row["rank"], {})
        summary = _step(row, names)
        own = {each: column[rows] for each, column in columns.items()}
        own["name"] = name[rows]
        own["communicator"] = np.array([index_of.get(ids[i], 0) for i in communicator[rows]], np.uint32)
        fill_summary(summary, own)
        yield row, summary


def _texts(column: Any) -> tuple[list[str], Any]:
    """A column of texts as a table and the rows' places in it."""
    import pyarrow as pa

    encoded = pa.chunked_array(column.cast(pa.string())).combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _step(row: dict[str, Any], names: list[str]) -> trace_pb2.StepSummary:
    known = {field: row[field] for field in PROGRESS if not np.isnan(row[field])}
    return trace_pb2.StepSummary(
        step=row["step"],
        start_ns=row["start_ns"],
        duration_ns=row["duration_ns"],
        cpu_ns=row["cpu_ns"],
        names=names,
        phases=[name for name, phase in trace_pb2.Phase.items() if row["phases"] >> phase & 1],
        progress=trace_pb2.Progress(**known) if known else None,
        traced=bool(row["traced"]),
    )
