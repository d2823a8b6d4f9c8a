"""The store: Parquet files per attempt, written whole or not at all, and the note of what they hold.

    <folder>/manifest.json                                      what counts: the last complete write
    <folder>/<run>/attempt-<n>/attempt.pb                       identity, evaluations, each rank's Hello and heartbeats
                                                                (_<run> where the run has the manifest's name)
    <folder>/<run>/attempt-<n>/<table>-<write>-<first>-<last>.parquet   steps, summaries, spans; history, merged, sealed
                                                                        (history_files.py)

A write puts its files first and the manifest last. Files of a write that the manifest does not name are left-overs of a
crash and are deleted: their rows come again from the journal. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.collector import history, history_files, tables
from megatronapp.collector.blocks import Buffer
from megatronapp.collector.journal import total_bytes
from megatronapp.collector.parts import Part
from megatronapp.core.durable_file import UNFINISHED, publish_file, replace_file
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.limits import RESERVED_RUNS

log = get_logger(__name__)

MANIFEST = "manifest.json"
_LAST_STEP = (1 << 64) - 1
_OWN_FAULTS = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL}
"""Errors of a file's own name and place; any other is the disk's, and all jobs wait for it."""

AttemptKey = tuple[str, int]
Failed = dict[AttemptKey, Exception]


@dataclass
class Manifest:
    """State that belongs together with the files: positions are those of the journal."""

    write: int = 0
    stored: int = 0
    """Everything before this position is in the files."""
    published: int = 0
    """Everything before this position is on the bus."""
    dedup: list[list[object]] = field(default_factory=list)
    controls: dict[str, str] = field(default_factory=dict)
    """Run → the last TraceControl, as hexadecimal."""
    owners: dict[str, str] = field(default_factory=dict)
    """Run → the job that opened it."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """What a later version wrote beyond these is left out. Raises ValueError or TypeError for no manifest."""
        given = json.loads(text)
        found = cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
        for each in fields(cls):
            kind = type(getattr(cls(), each.name))
            if not isinstance(getattr(found, each.name), kind):
                raise TypeError(f"{each.name} is no {kind.__name__}")
        if not all(isinstance(text, str) for text in (*found.controls.values(), *found.owners.values())):
            raise TypeError("controls and owners hold texts")
        return found


@dataclass(slots=True)
class Expired:
    """What was deleted: the bytes that were too old, those younger that made room, and the attempts gone altogether."""

    age_bytes: int = 0
    size_bytes: int = 0
    attempts: list[AttemptKey] = field(default_factory=list)

    def count(self, size: int, *, old: bool) -> None:
        if old:
            self.age_bytes += size
        else:
            self.size_bytes += size


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = self._read_manifest()
        self._remove_leftovers()

    def write(
        self,
        buffers: Mapping[AttemptKey, Buffer],
        notes: Mapping[AttemptKey, bytes],
        manifest: Manifest,
        set_aside: Callable[[Failed], None] = lambda _: None,
    ) -> Failed:
        """Add the buffers' rows and replace the attempts' notes, then the manifest.

        The attempts that can't be written through a fault of their own are returned, with nothing left of their rows;
        `set_aside` hears of them before the manifest says that they are done. The rows are read back once `accept` is
        called, so that a reader sees them either here or in memory. Raises UnavailableError when the disk takes
        nothing, after which the store is as before and the same write may be tried again.
        """
        failed: Failed = {}
        try:
            for key in buffers.keys() | notes.keys():
                if error := self._write_attempt(key, manifest.write, buffers.get(key), notes.get(key)):
                    failed[key] = error
            if failed:
                set_aside(failed)
            replace_file(self.folder / MANIFEST, json.dumps(asdict(manifest)).encode())
        except Exception as error:
            self._remove_leftovers()
            if not isinstance(error, OSError):
                raise
            raise UnavailableError(f"the store can't be written: {error.strerror}; free some disk space") from error
        return failed

    def accept(self, manifest: Manifest) -> None:
        """A write is complete."""
        self.manifest = manifest

    def notes(self) -> Iterator[tuple[Path, bytes]]:
        """The attempts' notes."""
        for path in sorted(self.folder.glob("*/attempt-*/attempt.pb")):
            yield path, path.read_bytes()

    def parts(self, key: AttemptKey, table: str) -> list[Part]:
        """Files of one table, oldest write first."""
        found = (Part.of(path) for path in self._path(key).glob(f"{table}-*.parquet"))
        known = [part for part in found if part is not None and part.write <= self.manifest.write]
        return sorted(known, key=lambda part: part.write)

    def read(
        self,
        parts: Sequence[Part],
        from_step: int,
        to_step: int,
        ranks: Sequence[int] = (),
        columns: Sequence[str] = (),
    ) -> Iterator[Any]:
        """Arrow tables with the rows of steps [from_step, to_step], of the ranks and columns named or of all; a file
        that can't be read is logged and passed over."""
        for part in parts:
            if part.first <= to_step and from_step <= part.last:
                try:
                    yield _read_part(part, from_step, to_step, ranks, columns)
                except DataError as error:
                    log.error("store_file_unreadable", error=str(error))

    def step_rows(self, parts: Sequence[Part], from_step: int, to_step: int) -> Iterator[dict[int, int]]:
        """Of each file that reaches into [from_step, to_step]: its steps there, and how many rows each has."""
        for part in parts:
            if part.first <= to_step and from_step <= part.last:
                try:
                    yield _read_step_rows(part, from_step, to_step)
                except DataError as error:
                    log.error("store_file_unreadable", error=str(error))

    def history(self, parts: Sequence[Part]) -> list[Any]:
        """The tables of these history files; one that can't be read is logged and passed over."""
        return list(self.read(parts, 0, _LAST_STEP))

    def history_parts(self, key: AttemptKey) -> list[Part]:
        """The history files that count."""
        return history_files.live(self._history_parts(key))

    def _history_parts(self, key: AttemptKey) -> list[Part]:
        return [part for table in history_files.TABLES for part in self.parts(key, table)]

    def size_bytes(self) -> int:
        return total_bytes(self.folder.glob("*/attempt-*/*"))

    def attempt_bytes(self, key: AttemptKey) -> int:
        return total_bytes(self._path(key).glob("*"))

    def expire(self, max_age_seconds: float, max_bytes: int, max_history_seconds: float | None = None) -> Expired:
        """Delete the oldest files until age and size are kept; histories go last, and by an age of their own, if one is
        given. A file that can't be deleted is passed over."""
        notes = (note for note in self.folder.glob("*/attempt-*/attempt.pb") if not any(note.parent.glob("*.parquet")))
        files = [(path, path.stat()) for path in (*self.folder.glob("*/attempt-*/*.parquet"), *notes)]
        files.sort(key=lambda file: (_is_history(file[0]), file[1].st_mtime))
        total, now = self.size_bytes(), time.time()
        history_age = max_age_seconds if max_history_seconds is None else max_history_seconds
        touched: set[Path] = set()
        expired = Expired()
        for path, state in files:
            old = state.st_mtime < now - (history_age if _is_history(path) else max_age_seconds)
            if (old or total > max_bytes) and _deleted(path):
                total -= state.st_size
                touched.add(path.parent)
                expired.count(state.st_size, old=old)
        for folder in sorted(touched):
            if not any(folder.glob("*.parquet")):
                shutil.rmtree(folder, ignore_errors=True)
                expired.attempts.append((_run_of(folder.parent), int(folder.name.removeprefix("attempt-"))))
        if touched:
            attempts, size_bytes = len(expired.attempts), expired.size_bytes
            log.info("store_expired", attempts=attempts, age_bytes=expired.age_bytes, size_bytes=size_bytes, left=total)
        if expired.size_bytes:
            log.warning("traces_dropped_for_size", bytes=expired.size_bytes, retention_bytes=max_bytes)
        return expired

    def _path(self, key: AttemptKey) -> Path:
        return self.folder / _folder_name(key[0]) / f"attempt-{key[1]}"

    def _attempt_folder(self, key: AttemptKey) -> Path:
        path = self._path(key)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _write_attempt(
        self, key: AttemptKey, write: int, buffer: Buffer | None, note: bytes | None
    ) -> Exception | None:
        """What went wrong with this attempt alone. Raises OSError of the disk."""
        try:
            folder = self._attempt_folder(key)
            if buffer is not None:
                self._write_parts(folder, write, buffer, self._history_parts(key))
            if note is not None:
                replace_file(folder / "attempt.pb", note)
        except Exception as error:  # one job's rows must not stop the others'
            if isinstance(error, OSError) and error.errno not in _OWN_FAULTS:
                raise
            self._remove_write(self._path(key))
            return error
        return None

    def _write_parts(self, folder: Path, write: int, buffer: Buffer, known: Sequence[Part]) -> None:
        if buffer.summaries:
            steps = [block.step for block in buffer.summaries]
            table = tables.step_table(buffer.summaries)
            _write_parquet(folder, "steps", write, steps, [table])
            self._write_history(folder, write, history.of_steps(table), known)
            _write_parquet(folder, "summaries", write, steps, [tables.summary_table(buffer.summaries)])
        if buffer.spans:
            steps = [block.step for block in buffer.spans]
            _write_parquet(folder, "spans", write, steps, tables.span_tables(buffer.spans))

    def _write_history(self, folder: Path, write: int, table: Any, known: Sequence[Part]) -> None:
        for part in history_files.obsolete(known):
            part.path.unlink(missing_ok=True)
        name, merging = history_files.HISTORY, history_files.to_merge(known)
        if merging:
            table = history.table(history.read([*self.history(merging), table]))
            name = history_files.name_of_merged(len(table))
        _write_parquet(folder, name, write, table["step"].to_numpy().tolist(), [table])

    def _read_manifest(self) -> Manifest:
        path = self.folder / MANIFEST
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_way()
            text = path.read_bytes() if path.exists() else b"{}"
        except OSError as error:
            raise UnavailableError(f"the store in {self.folder} can't be opened: {error.strerror}") from error
        try:
            return Manifest.from_json(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{path} can't be read; move {self.folder} away to begin with an empty store") from error

    def _make_way(self) -> None:
        """An earlier version let a run take the manifest's name."""
        for name in RESERVED_RUNS:
            if (self.folder / name).is_dir():
                (self.folder / name).rename(self.folder / _folder_name(name))

    def _remove_leftovers(self) -> None:
        for folder in self.folder.glob("*/attempt-*"):
            self._remove_write(folder)

    def _remove_write(self, folder: Path) -> None:
        """What no manifest names."""
        for path in folder.glob("*") if folder.is_dir() else ():
            part = Part.of(path)
            if path.suffix == UNFINISHED or (part is not None and part.write > self.manifest.write):
                path.unlink(missing_ok=True)


def _is_history(path: Path) -> bool:
    return path.name.split("-")[0] in history_files.TABLES


def _deleted(path: Path) -> bool:
    try:
        path.unlink()
    except OSError as error:
        log.error("store_file_not_deleted", file=str(path), error=str(error))
        return False
    return True


def _folder_name(run: str) -> str:
    """No run begins with "_"."""
    return f"_{run}" if run in RESERVED_RUNS else run


def _run_of(folder: Path) -> str:
    return folder.name.removeprefix("_")


def _write_parquet(folder: Path, name: str, write: int, steps: Sequence[int], row_groups: Iterable[Any]) -> None:
    """`row_groups` are tables of one schema, of which there is at least one."""
    import pyarrow.parquet as pq

    path = folder / f"{name}-{write:08d}-{min(steps)}-{max(steps)}.parquet"
    temporary = path.with_name(f"{path.name}{UNFINISHED}")
    rest = iter(row_groups)
    first = next(rest)
    with pq.ParquetWriter(temporary, first.schema, **_encoding(first.column_names)) as writer:
        for table in chain([first], rest):
            writer.write_table(table)
    publish_file(temporary, path)


def _encoding(columns: Sequence[str]) -> dict[str, Any]:
    """What is cheap to write and small: differences of times, text by number, else as it is; a table in one batch, as
    the usual 1,024 rows a batch cost a quarter more."""
    differences = [name for name in columns if name.endswith("_ns") and not name.startswith("clock_")]
    return {
        "compression": {name: "none" if name in differences else "lz4" for name in columns},
        "use_dictionary": [name for name in columns if name in {"name", "communicator"}],
        "column_encoding": dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
        "write_statistics": ["step", "rank"],
        "write_batch_size": tables.SPAN_ROWS,
    }


def _read_part(part: Part, from_step: int, to_step: int, ranks: Sequence[int], columns: Sequence[str] = ()) -> Any:
    """`columns` none: all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    step = pa.scalar(from_step, pa.uint64()), pa.scalar(min(to_step, _LAST_STEP), pa.uint64())
    filters: list[tuple[str, str, Any]] = [("step", ">=", step[0]), ("step", "<=", step[1])]
    if ranks:
        filters.append(("rank", "in", list(ranks)))
    try:
        return pq.read_table(part.path, columns=list(columns) or None, filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{part.path} can't be read ({error}); its steps {part.first}-{part.last} are lost") from error


def _read_step_rows(part: Part, from_step: int, to_step: int) -> dict[int, int]:
    steps, rows = np.unique(_read_part(part, from_step, to_step, (), ["step"])["step"].to_numpy(), return_counts=True)
    return dict(zip(steps.tolist(), rows.tolist(), strict=True))
