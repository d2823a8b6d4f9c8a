"""The rank's end of the memory that it shares with its agent (docs/agent.md), in Python: nothing here waits for anyone.

Words that a reader looks at without a lock are stored as one: a cast memoryview copies 8 aligned bytes at once. Their
order is the program's, which x86 keeps; elsewhere a reader may see a record early, finds it damaged and leaves it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import Sections, StepEnd
from megatronapp.trainer.plugins.scan.ring_writer import RingWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRIES = 512


class SegmentWriter:
    def __init__(self, ring_bytes: int, entries: int = ENTRIES, bulk_bytes: int = 0) -> None:
        """For the training thread, whose id the segment tells; `bulk_bytes` 0: no ring of frames. Raises OSError
        without memory, and ValueError."""
        if not layout.is_ring(ring_bytes):
            raise ValueError(f"ring_bytes is {ring_bytes}; it must be a power of two, at least {layout.MIN_RING_BYTES}")
        if bulk_bytes and not layout.is_ring(bulk_bytes, layout.MAX_BULK_BYTES):
            raise ValueError(f"bulk_bytes is {bulk_bytes}; it must be a power of two of 4 KiB to 256 MiB, or 0")
        self.sections = Sections.of(ring_bytes, entries, bulk_bytes)
        self.fd = os.memfd_create("megatronapp-scan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.sections.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, self.sections.size)
        self._words = memoryview(self._map).cast("Q")
        self._state = [0] * 8
        self._lock = threading.Lock()
        self._ring = RingWriter(self._map, self._words, self.sections.ring, ring_bytes)
        self._bulk = RingWriter(self._map, self._words, self.sections.bulk, bulk_bytes) if bulk_bytes else None
        self._bulk_lock = threading.Lock()
        self._write_header()

    @property
    def max_rows(self) -> int:
        """Of one record."""
        return (self._ring.most_content - layout.ROWS_HEAD.size) // (8 * len(layout.COLUMNS))

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

    # -- the rings --

    def put_rows(self, step: int, rows: npt.NDArray[np.int64]) -> None:
        """rows: [rows, columns]; in as many records as it takes."""
        for begin in range(0, len(rows), self.max_rows):
            part = rows[begin : begin + self.max_rows]
            head = layout.ROWS_HEAD.pack(step, len(part), part.shape[1])
            self._ring.put(layout.ROWS, head, np.ascontiguousarray(part.T).data)

    def put_end(self, end: StepEnd) -> None:
        self._ring.put(layout.STEP_END, layout.END.pack(*end))

    def put_frame(self, descriptor: Buffer, payload: Buffer) -> None:
        """See Recorder.write_frame."""
        if self._bulk is None:
            raise ValueError("this recorder has no ring of frames")
        views = memoryview(descriptor), memoryview(payload)
        if not all(view.c_contiguous for view in views):
            raise BufferError("a frame's descriptor and payload must be contiguous")
        parts: list[Buffer] = [layout.FRAME_HEAD.pack(views[0].nbytes, 0, views[1].nbytes)]
        for view in views:
            parts += [view, bytes(-view.nbytes % 8)]
        size = sum(memoryview(part).nbytes for part in parts)
        if size > self._bulk.most_content:
            raise ValueError(f"a frame of {size} bytes; this ring takes at most {self._bulk.most_content}")
        with self._bulk_lock:
            self._bulk.put(layout.FRAME, *parts)

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
            at.bulk,
            at.bulk_bytes,
        )
        self._map[: len(header)] = header

    def _locked(self, at: int, content: bytes) -> None:
        with self._lock:
            word = at >> 3
            self._words[word] += 1
            self._map[at + 8 : at + 8 + len(content)] = content
            self._words[word] += 1


STATE_FIELDS = ("step", "phase", "closing", "lost", "allocated", "reserved", "peak", "total")
