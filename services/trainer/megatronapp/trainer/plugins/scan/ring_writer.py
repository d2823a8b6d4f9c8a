"""The writer's end of a ring (docs/agent.md) in Python: what nobody has read in time is overwritten.

Words that a reader looks at without a lock are stored as one: a cast memoryview copies 8 aligned bytes at once.
"""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING

from megatronapp.trainer.agent import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RingWriter:
    """For one thread at a time."""

    def __init__(self, memory: mmap.mmap, words: memoryview, at: int, ring_bytes: int) -> None:
        """`words`: the memory in words of 8 bytes; the ring's header lies at byte `at` of it, its data behind."""
        self._map = memory
        self._words = words
        self._head_word, self._tail_word = (at >> 3) + layout.HEAD_WORD, (at >> 3) + layout.TAIL_WORD
        self._data = at + layout.RING_HEADER_BYTES
        self._bytes = ring_bytes
        self._head = self._tail = self._number = 0
        self._fence = threading.Lock()

    @property
    def most_content(self) -> int:
        """Bytes that a record may hold after its header."""
        return self._bytes // layout.SHARE_OF_RING - layout.RECORD.size

    def put(self, kind: int, *parts: Buffer) -> None:
        """A record of these parts, one behind the other; together a multiple of 8 bytes, at most `most_content`. It is
        written where it does not cross the data's end; what lies there is given up before."""
        size = layout.RECORD.size + sum(memoryview(part).nbytes for part in parts)
        room = self._bytes - self._head % self._bytes
        filling = room if room < size else 0
        self._give_up(self._head + filling + size)
        if filling:
            self._copy(self._head, layout.SHORT_RECORD.pack(filling, layout.FILLING, 0))
        self._number += 1
        self._copy(self._head + filling, layout.RECORD.pack(size, kind, 0, self._number), *parts)
        self._head += filling + size
        self._words[self._head_word] = self._head

    def _give_up(self, until: int) -> None:
        """Moves the tail, record by record, so that what lies between it and `until` fits."""
        before = self._tail
        while until - self._tail > self._bytes:
            size = layout.SHORT_RECORD.unpack_from(self._map, self._data + self._tail % self._bytes)[0]
            # Memory that another process can write: a size that can't be ends the walk.
            self._tail = self._tail + size if 0 < size <= self._head - self._tail else self._head
        if self._tail != before:
            self._words[self._tail_word] = self._tail
            with self._fence:  # large copies bypass the cache by stores that else might overtake the tail's
                pass

    def _copy(self, position: int, *parts: Buffer) -> None:
        at = self._data + position % self._bytes
        for part in parts:
            end = at + memoryview(part).nbytes
            self._map[at:end] = part
            at = end
