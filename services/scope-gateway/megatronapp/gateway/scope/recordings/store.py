"""The folder of recordings: one file each, bounded together, gone after some days.

A name that is asked for is one that the store has given: nothing else becomes a path.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.core.logging import get_logger
from megatronapp.gateway.errors import ConflictError
from megatronapp.gateway.scope.recordings.format import HEADER_BYTES, Header, Index, read_header, read_index

log = get_logger(__name__)

SUFFIX, UNFINISHED = ".mscope", ".part"
DAY_SECONDS = 86400.0
MOST_OPEN = 8
"""Indexes that are kept, of what is shown now."""
MOST_LISTED = 2000
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Recording:
    id: str
    header: Header
    bytes: int
    expires_unix_seconds: float | None


class Draft:
    """A recording that is being written; it appears when it is finished. Used by one thread at a time."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Raises OSError."""
        self.id = secrets.token_hex(8)
        self._path = folder / (self.id + UNFINISHED)
        self._file = self._path.open("xb")
        self._file.write(header.packed())

    def rewind(self) -> None:
        """Somebody else's file takes the place of what is written."""
        self._file.seek(0)
        self._file.truncate()

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def read(self) -> Index:
        """What has been written so far. Raises DataError."""
        self._file.flush()
        with self._path.open("rb") as file:
            return read_index(file)

    def finish(self, header: Header) -> None:
        self._file.seek(0)
        self._file.write(header.packed())
        self._file.close()
        self._path.rename(self._path.with_suffix(SUFFIX))

    def discard(self) -> None:
        """Unless it is finished."""
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class Recordings:
    """All methods read or write files: they are called in threads."""

    def __init__(self, folder: Path, max_bytes: int, days: float, max_seconds: float) -> None:
        """max_bytes: of all. days: how long one is kept, 0: for ever. max_seconds: of one."""
        self.folder = folder
        self._max_bytes = max_bytes
        self._days = days
        self._max_seconds = max_seconds
        self._open: OrderedDict[str, Index] = OrderedDict()
        self._lock = threading.Lock()

    def draft(self, header: Header) -> Draft:
        """Raises ConflictError when the folder is full, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sweep()
        used = sum(_size(path) for path in self.folder.glob("*.*"))
        if used >= self._max_bytes:
            raise ConflictError(f"recordings use {used >> 20} MiB, which is the most; delete some on /recordings")
        return Draft(self.folder, header)

    def list(self) -> list[Recording]:
        """The newest first. A file that is none is left out."""
        found = []
        for path in self.folder.glob("*" + SUFFIX):
            with suppress(DataError, OSError, NotFoundError):
                found.append(self.get(path.stem))
        return sorted(found, key=lambda one: -one.header.recorded_unix_seconds)[:MOST_LISTED]

    def get(self, name: str) -> Recording:
        """Raises NotFoundError, DataError."""
        path = self.path(name)
        with path.open("rb") as file:
            header = read_header(file)
        status = path.stat()
        expires = status.st_mtime + self._days * DAY_SECONDS if self._days else None
        return Recording(name, header, status.st_size, expires)

    def path(self, name: str) -> Path:
        """Raises NotFoundError."""
        path = self.folder / (name + SUFFIX)
        if not _ID.fullmatch(name) or not path.is_file():
            raise NotFoundError("there is no such recording, or its time is over; /recordings lists what there is")
        return path

    def index(self, name: str) -> Index:
        """Raises NotFoundError, DataError."""
        path = self.path(name)
        with self._lock:
            if name not in self._open:
                with path.open("rb") as file:
                    self._open[name] = read_index(file)
            self._open.move_to_end(name)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return self._open[name]

    def take(self, draft: Draft, by: str) -> Recording:
        """What somebody brought, when all of it is right. Raises DataError."""
        draft.finish(summary(draft.read(), by))
        return self.get(draft.id)

    def delete(self, name: str) -> None:
        """Raises NotFoundError."""
        self.path(name).unlink(missing_ok=True)
        with self._lock:
            self._open.pop(name, None)

    def sweep(self) -> None:
        """Delete what is over, and finish what a gateway that was ended has left behind."""
        now = time.time()
        for path in list(self.folder.glob("*.*")):
            age = now - _modified(path, now)
            try:
                if path.suffix == SUFFIX and self._days and age > self._days * DAY_SECONDS:
                    path.unlink(missing_ok=True)
                    log.info("scope_recording_expired", recording=path.stem)
                elif path.suffix == UNFINISHED and age > self._max_seconds + 60:
                    _complete(path)
            except (OSError, DataError) as error:
                log.warning("scope_recording_lost", recording=path.stem, error=str(error))
                path.unlink(missing_ok=True)


def summary(index: Index, by: str) -> Header:
    """A header that says what the entries say."""
    frames = sum(bool(entry.replaces) for entry in index.entries)
    events = sum(not entry.replaces and entry.asked is None for entry in index.entries)
    return index.header.model_copy(update={"by": by, "seconds": index.seconds, "frames": frames, "events": events})


def _complete(path: Path) -> None:
    with path.open("r+b") as file:
        index = read_index(file, cut_off=True)
        last = index.entries[-1] if index.entries else None
        file.truncate(last.offset + last.size if last else HEADER_BYTES)
        file.seek(0)
        file.write(summary(index, index.header.by).packed())
    path.rename(path.with_suffix(SUFFIX))


def read_entries(file: BinaryIO, places: list[tuple[int, int]]) -> list[bytes]:
    """Contents by (offset, size)."""
    found = []
    for offset, size in places:
        file.seek(offset)
        found.append(file.read(size))
    return found


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _modified(path: Path, otherwise: float) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return otherwise
