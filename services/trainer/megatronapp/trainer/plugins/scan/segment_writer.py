"""The rank's end of the memory that it shares with its agent (docs/agent.md), in Python: nothing here waits for anyone.

Words that a reader looks at without a lock are stored as one: a cast memoryview copies 8 aligned bytes at once. Their
order is the program's, which x86 keeps; elsewhere a reader may see a record early, finds it damaged and leaves it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading

import numpy as np
import numpy.typing as npt

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import Sections, StepEnd

ENTRIES = 512


class SegmentWriter:
    def __init__(self, ring_bytes: int, entries: int = ENTRIES) -> None:
        """For the training thread, whose id the segment tells. Raises OSError without memory, and ValueError."""
        if ring_bytes < layout.MIN_RING_BYTES or ring_bytes & ring_bytes - 1:
            raise ValueError(f"ring_bytes is {ring_bytes}; it must be a power of two, at least {layout.MIN_RING_BYTES}")
        self.sections = Sections.of(ring_bytes, entries)
        self.fd = os.memfd_create("megatronapp-scan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.sections.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, self.sections.size)
        self._words = memoryview(self._map).cast("Q")
        self._state = [0] * 8
        self._lock = threading.Lock()
        self._head = self._tail = 0
        self._number = 0
        self._write_header()

    @property
    def max_rows(self) -> int:
        """Of one record."""
        room = self.sections.ring_bytes // layout.SHARE_OF_RING - layout.RECORD.size - layout.ROWS_HEAD.size
        return room // (8 * len(layout.COLUMNS))

    # -- state and control --

    def set_activity(self, word: int) -> None:
        self._words[(self.sections.state >> 3) + layout.ACTIVITY_WORD] = word

    def set_marks(self, marks: int, of_step: int) -> None:
        self._words[(self.sections.state >> 3) + layout.MARKS_WORD] = marks
        self._words[(self.sections.state >> 3) + layout.STEP_MARKS_WORD] = of_step

    def set_state(self, **fields: int) -> None:
        """Of step, phase, closing, lost, allocated, reserved, peak and total those that change."""
        for name, value in fields.items():
            self._state[STATE_FIELDS.index(name)] = value
        self._locked(self.sections.state, layout.STATE.pack(*self._state))

    def control(self) -> tuple[int, int, int, int, int]:
        """(serial, enabled, interval, continuous iterations, granularity); serial 0 before the agent has spoken, or
        while it speaks."""
        at = self.sections.control
        before = self._words[at >> 3]
        enabled, interval, continuous, granularity, serial = layout.CONTROL.unpack_from(self._map, at + 8)
        if before & 1 or self._words[at >> 3] != before:
            return 0, 0, 0, 0, 0
        return serial, enabled, interval, continuous, granularity

    # -- frontiers --

    def set_entries(self, used: int) -> None:
        at = self.sections.frontiers
        self._map[at : at + 4] = used.to_bytes(4, "little")

    def set_frontier(self, index: int, entry: bytes) -> None:
        at = self.sections.frontiers + layout.FRONTIERS_HEADER_BYTES + index * layout.FRONTIER_BYTES
        self._locked(at, entry)

    # -- the ring --

    def put_rows(self, step: int, rows: npt.NDArray[np.int64]) -> None:
        """rows: [rows, columns]; in as many records as it takes."""
        for begin in range(0, len(rows), self.max_rows):
            part = rows[begin : begin + self.max_rows]
            head = layout.ROWS_HEAD.pack(step, len(part), part.shape[1])
            self._put(layout.ROWS, head + np.ascontiguousarray(part.T).tobytes())

    def put_end(self, end: StepEnd) -> None:
        self._put(layout.STEP_END, layout.END.pack(*end))

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)

    def _write_header(self) -> None:
        at = self.sections
        header = layout.HEADER.pack(
            layout.MAGIC,
            layout.LAYOUT,
            os.getpid(),
            threading.get_native_id(),
            0,
            at.state,
            at.control,
            at.frontiers,
            at.entries,
            layout.FRONTIER_BYTES,
            at.ring,
            at.ring_bytes,
            0,
            0,
        )
        self._map[: len(header)] = header

    def _locked(self, at: int, content: bytes) -> None:
        with self._lock:
            word = at >> 3
            self._words[word] += 1
            self._map[at + 8 : at + 8 + len(content)] = content
            self._words[word] += 1

    def _put(self, kind: int, content: bytes) -> None:
        """A record is written where it does not cross the data's end; what lies there is given up before."""
        size = layout.RECORD.size + len(content)
        self._number += 1
        room = self.sections.ring_bytes - self._head % self.sections.ring_bytes
        if room < size:
            self._write(layout.SHORT_RECORD.pack(room, layout.FILLING, 0), room)
        self._write(layout.RECORD.pack(size, kind, 0, self._number) + content, size)

    def _write(self, data: bytes, size: int) -> None:
        ring = self.sections.ring >> 3
        while self._head + size - self._tail > self.sections.ring_bytes:
            self._tail += self._length_at(self._tail)
        self._words[ring + layout.TAIL_WORD] = self._tail
        at = self.sections.ring_data + self._head % self.sections.ring_bytes
        self._map[at : at + len(data)] = data
        self._head += size
        self._words[ring + layout.HEAD_WORD] = self._head

    def _length_at(self, position: int) -> int:
        at = self.sections.ring_data + position % self.sections.ring_bytes
        return int(layout.SHORT_RECORD.unpack_from(self._map, at)[0])


STATE_FIELDS = ("step", "phase", "closing", "lost", "allocated", "reserved", "peak", "total")
