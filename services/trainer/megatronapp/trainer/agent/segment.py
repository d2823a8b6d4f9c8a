"""The agent's end of the memory that a rank shares with it. Whatever stands there may be a lie, and may change while it
is read: every size is checked before it is used, every copy before it is believed, and no loop is longer than what it
is given. A rank that writes what is implausible harms itself alone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import Sections
from megatronapp.trainer.agent.ring import RingReader, SegmentError

TRIES = 16
"""Looks at what its writer may be at work on."""


@dataclass(frozen=True, slots=True)
class State:
    step: int
    phase: int
    closing: int
    lost: int
    allocated: int
    reserved: int
    peak: int
    total: int


NO_STATE = State(0, 0, 0, 0, 0, 0, 0, 0)


class Segment:
    """Maps a rank's segment. `close` it."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over. Raises SegmentError."""
        try:
            size = _checked_size(fd)
            self._map = mmap.mmap(fd, size)
        except (OSError, ValueError) as error:
            raise SegmentError(f"a segment that can't be mapped: {error}") from error
        finally:
            os.close(fd)
        try:
            self.sections, self.thread = _sections(self._map, size)
        except SegmentError:
            self._map.close()
            raise
        self._words = memoryview(self._map)[: size & ~7].cast("Q")
        self._state, self._state_lock = NO_STATE, -1
        self._frontiers = np.zeros(0, layout.FRONTIER_DTYPE)
        self.ring = self._reader(self.sections.ring, self.sections.ring_bytes, layout.READ_WORD)
        bulk_bytes = self.sections.bulk_bytes
        self.bulk = self._reader(self.sections.bulk, bulk_bytes, layout.BULK_READ_WORD) if bulk_bytes else None
        """The ring of frames, where there is one."""

    @property
    def state(self) -> State:
        """The newest that could be read whole."""
        at = self.sections.state
        for _ in range(TRIES):
            before = self._words[at >> 3]
            if before == self._state_lock:
                break
            copy = layout.STATE.unpack_from(self._map, at + 8)
            if not before & 1 and self._words[at >> 3] == before:
                self._state, self._state_lock = State(*copy), before
                break
        return self._state

    @property
    def activity(self) -> tuple[int, int]:
        """Name of the innermost open span, -1: none; and the microseconds of its begin, modulo 2^48."""
        word = self._words[(self.sections.state >> 3) + layout.ACTIVITY_WORD]
        return (word >> layout.ACTIVITY_SHIFT) - 1, word & (1 << layout.ACTIVITY_SHIFT) - 1

    @property
    def marks(self) -> int:
        return self._words[(self.sections.state >> 3) + layout.MARKS_WORD]

    @property
    def unpassed_mark_ns(self) -> int:
        """When the training thread recorded the oldest mark that its device has not passed, told while that thread
        records no more; 0: none, or nothing is told."""
        return self._words[(self.sections.state >> 3) + layout.UNPASSED_MARK_WORD]

    def frontiers(self) -> npt.NDArray[np.void]:
        """The entries in use, as layout.FRONTIER_DTYPE; one that could not be read whole is as it was."""
        used = min(self._words[self.sections.frontiers >> 3] & 0xFFFFFFFF, self.sections.entries)
        known = np.zeros(used, layout.FRONTIER_DTYPE)
        known[: len(self._frontiers)] = self._frontiers[:used]
        torn = np.arange(used)
        begin = self.sections.frontiers + layout.FRONTIERS_HEADER_BYTES
        for _ in range(TRIES):
            if not len(torn):
                break
            copy = np.frombuffer(bytes(self._map[begin : begin + used * layout.FRONTIER_BYTES]), layout.FRONTIER_DTYPE)
            locks = self._locks(begin, used)
            whole = torn[(copy["lock"][torn] == locks[torn]) & (locks[torn] & 1 == 0)]
            known[whole] = copy[whole]
            torn = np.setdiff1d(torn, whole, assume_unique=True)
        self._frontiers = known
        return known[known["communicator"] > 0]  # 0: never told

    def table_copy(self, at: int, size: int) -> bytes:
        """Some bytes of the section that its owner lays out, as they are now; fewer where it ends before."""
        begin, end = self.sections.table + at, self.sections.table + self.sections.table_bytes
        return bytes(self._map[begin : min(begin + size, end)])

    def write_control(self, enabled: bool, interval: int, continuous: int, granularity: int, serial: int) -> None:
        at = self.sections.control
        content = layout.CONTROL.pack(enabled, interval, continuous, granularity, serial)
        lock = self._words[at >> 3] & ~1 & (1 << 63) - 1  # whatever a rank has made of it
        self._words[at >> 3] = lock + 1
        self._map[at + 8 : at + 8 + len(content)] = content
        self._words[at >> 3] = lock + 2

    @property
    def serial(self) -> int:
        """Of the control that an agent wrote last, which may have been another than this."""
        return int(layout.CONTROL.unpack_from(self._map, self.sections.control + 8)[4])

    @property
    def sent(self) -> int:
        """Number of the last message about this rank: an agent that follows another goes on behind it."""
        return self._words[(self.sections.control >> 3) + layout.SENT_WORD]

    @sent.setter
    def sent(self, number: int) -> None:
        self._words[(self.sections.control >> 3) + layout.SENT_WORD] = number

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _reader(self, at: int, ring_bytes: int, read_word: int) -> RingReader:
        return RingReader(self._map, self._words, at, ring_bytes, (self.sections.control >> 3) + read_word)

    def _locks(self, begin: int, used: int) -> npt.NDArray[np.uint64]:
        table = np.frombuffer(self._map, np.uint64, used * layout.FRONTIER_BYTES // 8, begin)
        return table[:: layout.FRONTIER_BYTES // 8].copy()


def _checked_size(fd: int) -> int:
    """Of a memfd that can't shrink under its reader, which would kill it."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or not layout.HEADER_BYTES <= about.st_size <= layout.MAX_SEGMENT_BYTES:
        raise SegmentError(f"a segment of {about.st_size} bytes; at most {layout.MAX_SEGMENT_BYTES}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise SegmentError("a segment whose size is not sealed")
    return about.st_size


def _sections(data: mmap.mmap, size: int) -> tuple[Sections, int]:
    """(sections, id of the training thread). Raises SegmentError."""
    header = layout.HEADER.unpack_from(data)
    magic, version, _, thread, _, state, control, frontiers, entries, entry_bytes, ring, ring_bytes, *bulk = header
    if magic != layout.MAGIC or version != layout.LAYOUT or entry_bytes != layout.FRONTIER_BYTES:
        raise SegmentError(f"a segment of layout {version}; this agent reads {layout.LAYOUT}")
    if entries > layout.MAX_ENTRIES or not layout.is_ring(ring_bytes):
        raise SegmentError(f"a segment of {entries} frontiers and a ring of {ring_bytes} bytes")
    if any(bulk) and not layout.is_ring(bulk[1], layout.MAX_BULK_BYTES):
        raise SegmentError(f"a ring of frames of {bulk[1]} bytes")
    table, table_bytes = layout.TABLE.unpack_from(data, layout.TABLE_OFFSET)
    for offset, length in (
        (state, layout.STATE_BYTES),
        (control, layout.CONTROL_BYTES),
        (frontiers, layout.FRONTIERS_HEADER_BYTES + entries * layout.FRONTIER_BYTES),
        (ring, layout.RING_HEADER_BYTES + ring_bytes),
        *([(bulk[0], layout.RING_HEADER_BYTES + bulk[1])] if any(bulk) else []),
        *([(table, table_bytes)] if table or table_bytes else []),
    ):
        if offset % layout.ALIGNMENT or not layout.HEADER_BYTES <= offset <= size - length:
            raise SegmentError(f"a section of {length} bytes at {offset} in a segment of {size}")
    return Sections(state, control, frontiers, entries, ring, ring_bytes, bulk[0], bulk[1], table, table_bytes), thread
