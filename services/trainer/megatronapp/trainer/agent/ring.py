"""The reader's end of a ring (docs/agent.md), of small records or of bulk frames: they differ in size alone.

The writer waits for nobody, so a reader may be overtaken at any moment. It copies a record once and checks then whether
the writer has come so far meanwhile: if so the copy is dropped, and the record counted as lost. What it hands out is
its own.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent import layout

RECORDS_AT_ONCE = 4096
BYTES_AT_ONCE = 8 << 20


class SegmentError(DataError):
    """The segment can't be what it must be."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: int
    number: int
    content: memoryview


class RingReader:
    """Begins where the last agent has stopped. Not thread-safe."""

    def __init__(self, memory: mmap.mmap, words: memoryview, at: int, ring_bytes: int, read_word: int) -> None:
        """`words`: the memory in words of 8 bytes; the ring's header lies at byte `at` of it, with `ring_bytes` of data
        behind, all of it within; `read_word`: the word that says how far agents have read."""
        self._map = memory
        self._words = words
        self._head_word, self._tail_word = (at >> 3) + layout.HEAD_WORD, (at >> 3) + layout.TAIL_WORD
        self._data = at + layout.RING_HEADER_BYTES
        self._bytes = ring_bytes
        self._read_word = read_word
        read = words[read_word]
        self.position = read if read <= self.head() and read % 8 == 0 else 0
        """How far this agent has read."""
        self._number = -1 if self.position else 0  # the numbers say how many records the last one has read
        self.lost = 0
        """Records that were overwritten before they were read."""

    def head(self) -> int:
        """How far the rank has written."""
        return self._words[self._head_word]

    def records(self, until: int) -> list[Record]:
        """What was written since the last call, up to the head `until`, but no more than a part at once: `position`
        tells. Raises SegmentError when the ring can't be what it must be."""
        if until % 8:
            raise SegmentError(f"a ring's head at byte {until}")
        found: list[Record] = []
        read_bytes = 0
        for _ in range(RECORDS_AT_ONCE):
            if self.position >= until or read_bytes >= BYTES_AT_ONCE:
                break
            record, size = self._next(until)
            read_bytes += size
            if record is not None:
                self.lost += max(record.number - self._number - 1, 0)
                self._number = record.number
                found.append(record)
        self._words[self._read_word] = self.position
        return found

    def _next(self, until: int) -> tuple[Record | None, int]:
        """The record at the position, None for a filling or where the writer has been faster; bytes gone over."""
        start, tail = self.position, self._tail()
        if tail > start:
            self.position = min(tail, until)
            return None, 0
        if until - start > self._bytes:
            raise SegmentError(f"a ring of {self._bytes} bytes that holds {until - start}")
        offset = start % self._bytes
        at = self._data + offset
        size, kind, _ = layout.SHORT_RECORD.unpack_from(self._map, at)
        least = layout.SHORT_RECORD.size if kind == layout.FILLING else layout.RECORD.size
        fits = least <= size <= min(self._bytes - offset, until - start) and size % 8 == 0
        if kind != layout.FILLING:
            fits = fits and size <= self._bytes // layout.SHARE_OF_RING
        copy = self._map[at : at + size] if fits and kind != layout.FILLING else b""
        if self._tail() > start:
            return None, 0
        if not fits:
            raise SegmentError(f"a record of {size} bytes and kind {kind} at byte {start} of the ring")
        self.position = start + size
        if kind == layout.FILLING:
            return None, size
        number = layout.RECORD.unpack_from(copy)[3]
        if self._number < 0:
            self._number = number - 1
        return Record(kind, number, memoryview(copy)[layout.RECORD.size :]), size

    def _tail(self) -> int:
        tail = self._words[self._tail_word]
        if tail % 8:
            raise SegmentError(f"a ring's tail at byte {tail}")
        return tail
