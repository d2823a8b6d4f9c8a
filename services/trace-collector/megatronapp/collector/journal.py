"""The journal: records on disk before anybody is told that they arrived.

Records are counted from 0; the count is a record's position. A segment `<first position>.log` begins with MAGIC and
holds records as length, CRC-32 (both u32, little-endian) and payload. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

MAGIC = b"MAJRNL1\n"
_HEADER = struct.Struct("<II")
_PROBE_BYTES = 1 << 16
_MAX_PIECES = 512
"""In one system call; Linux takes 1024."""


class Journal:
    """Append-only segments in one folder, owned by one process.

    Opening finds the last whole record; what a killed writer left behind it is cut off. Positions go on from there, and
    from `at_least` when the journal itself knows of fewer records (a power loss without fsync). Raises
    UnavailableError when the folder can't be written.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 64 << 20, fsync: bool = True, at_least: int = 0) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        self._file = -1
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.position = self._recover()
        except OSError as error:
            raise UnavailableError(f"the journal in {folder} can't be opened: {error.strerror}") from error
        if self.position < at_least:
            self.close()
            self.position = at_least

    def write(self, records: Sequence[Sequence[bytes]]) -> int:
        """Append records, each in pieces, as one group and make them durable; returns the position of the first.

        All or none: on a full disk the segment is cut back to where it was, and UnavailableError is raised.
        """
        first = self.position
        pieces = [piece for record in records for piece in (_head(record), *record)]
        try:
            if self._file < 0 or self._size >= self._segment_bytes:
                self._open_segment(first)
            self._append(pieces)
        except OSError as error:
            raise UnavailableError(f"the journal can't be written: {error.strerror}; free some disk space") from error
        self._size += sum(map(len, pieces))
        self.position = first + len(records)
        return first

    def probe(self) -> bool:
        """Whether the disk takes data now."""
        path = self._folder / "probe"
        try:
            path.write_bytes(bytes(_PROBE_BYTES))
            path.unlink()
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        return True

    def replay(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """(position, payload) of every whole record from `start` on."""
        segments = self._segments()
        for index, path in enumerate(segments):
            if path == segments[-1] or _first(segments[index + 1]) > start:
                yield from ((p, payload) for p, payload, _ in _records(path) if p >= start)

    def trim(self, position: int) -> int:
        """Delete the segments that hold nothing from `position` on; returns how many bytes that freed."""
        segments = self._segments()
        freed = 0
        for path, following in pairwise(segments):
            if _first(following) <= position:
                freed += path.stat().st_size
                path.unlink()
        return freed

    def size_bytes(self) -> int:
        return total_bytes(self._segments())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _segments(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))

    def _recover(self) -> int:
        segments = self._segments()
        if not segments:
            return 0
        last = segments[-1]
        position, end = _first(last), 0
        for number, _, end_of_record in _records(last):
            position, end = number + 1, end_of_record
        if end < last.stat().st_size:
            log.warning("journal_tail_cut", segment=last.name, bytes=last.stat().st_size - end)
        if end == 0:
            last.unlink()
            return position
        self._file = os.open(last, os.O_WRONLY | os.O_APPEND)
        self._size = end
        os.ftruncate(self._file, end)
        return position

    def _open_segment(self, position: int) -> None:
        path = self._folder / f"{position:020d}.log"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            _write_all(file, [MAGIC])
            self._sync_folder()
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self.close()
        self._file, self._size = file, len(MAGIC)

    def _append(self, pieces: Sequence[bytes]) -> None:
        try:
            _write_all(self._file, pieces)
            if self._fsync:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise

    def _sync_folder(self) -> None:
        if self._fsync:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def total_bytes(files: Iterable[Path]) -> int:
    """Size of files, of which some may be gone by the time they are asked."""
    total = 0
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _head(record: Sequence[bytes]) -> bytes:
    crc = 0
    for piece in record:
        crc = zlib.crc32(piece, crc)
    return _HEADER.pack(sum(map(len, record)), crc)


def _first(segment: Path) -> int:
    return int(segment.stem)


def _write_all(file: int, pieces: Sequence[bytes]) -> None:
    for first in range(0, len(pieces), _MAX_PIECES):
        views = [memoryview(piece) for piece in pieces[first : first + _MAX_PIECES] if piece]
        while views:
            written = os.writev(file, views)
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]


def _records(segment: Path) -> Iterator[tuple[int, bytes, int]]:
    """(position, payload, offset of its end) of the segment's whole records, up to the first that is not."""
    data = memoryview(segment.read_bytes())
    if data[: len(MAGIC)] != MAGIC:
        log.error("journal_segment_unreadable", segment=segment.name)
        return
    position, offset = _first(segment), len(MAGIC)
    while offset + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, offset)
        payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload) != crc:
            log.warning("journal_record_broken", segment=segment.name, offset=offset)
            return
        offset += _HEADER.size + length
        yield position, bytes(payload), offset
        position += 1
