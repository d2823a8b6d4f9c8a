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

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import Sections

TRIES = 16
"""Looks at what its writer may be at work on."""
RECORDS_AT_ONCE = 4096
BYTES_AT_ONCE = 8 << 20


class SegmentError(DataError):
    """The segment can't be what it must be."""


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


@dataclass(frozen=True, slots=True)
class Record:
    kind: int
    number: int
    content: memoryview


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
        self._number = 0
        self.lost_records = 0
        """Overwritten before they were read."""
        self._position = self._first_position()

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

    def head(self) -> int:
        """How far the rank has written."""
        return self._words[(self.sections.ring >> 3) + layout.HEAD_WORD]

    def records(self, until: int) -> list[Record]:
        """What was written since the last call, up to the head `until`, but no more than a part at once: `position`
        tells. Raises SegmentError when the ring can't be what it must be."""
        if until % 8:
            raise SegmentError(f"a ring's head at byte {until}")
        found: list[Record] = []
        taken = 0
        for _ in range(RECORDS_AT_ONCE):
            if self._position >= until or taken >= BYTES_AT_ONCE:
                break
            record, size = self._next(until)
            taken += size
            if record is not None:
                self.lost_records += max(record.number - self._number - 1, 0)
                self._number = record.number
                found.append(record)
        self._words[(self.sections.control >> 3) + layout.READ_WORD] = self._position
        return found

    @property
    def position(self) -> int:
        """How far this agent has read."""
        return self._position

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _first_position(self) -> int:
        """Where the last agent has stopped; the numbers say how many records it has seen."""
        read = self._words[(self.sections.control >> 3) + layout.READ_WORD]
        position = read if read <= self.head() and read % 8 == 0 else 0
        self._number = -1 if position else 0
        return position

    def _next(self, until: int) -> tuple[Record | None, int]:
        """The record at the position, None for a filling or where the writer has been faster; bytes gone over."""
        sections = self.sections
        start, tail = self._position, self._tail()
        if tail > start:
            self._position = min(tail, until)
            return None, 0
        if until - start > sections.ring_bytes:
            raise SegmentError(f"a ring of {sections.ring_bytes} bytes that holds {until - start}")
        offset = start % sections.ring_bytes
        at = sections.ring_data + offset
        size, kind, _ = layout.SHORT_RECORD.unpack_from(self._map, at)
        least = layout.SHORT_RECORD.size if kind == layout.FILLING else layout.RECORD.size
        fits = least <= size <= min(sections.ring_bytes - offset, until - start) and size % 8 == 0
        if kind != layout.FILLING:
            fits = fits and size <= sections.ring_bytes // layout.SHARE_OF_RING
        copy = self._map[at : at + size] if fits and kind != layout.FILLING else b""
        if self._tail() > start:
            return None, 0
        if not fits:
            raise SegmentError(f"a record of {size} bytes and kind {kind} at byte {start} of the ring")
        self._position = start + size
        if kind == layout.FILLING:
            return None, size
        number = layout.RECORD.unpack_from(copy)[3]
        if self._number < 0:
            self._number = number - 1
        return Record(kind, number, memoryview(copy)[layout.RECORD.size :]), size

    def _tail(self) -> int:
        tail = self._words[(self.sections.ring >> 3) + layout.TAIL_WORD]
        if tail % 8:
            raise SegmentError(f"a ring's tail at byte {tail}")
        return tail

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
    magic, version, _, thread, _, state, control, frontiers, entries, entry_bytes, ring, ring_bytes, *_ = header
    if magic != layout.MAGIC or version != layout.LAYOUT or entry_bytes != layout.FRONTIER_BYTES:
        raise SegmentError(f"a segment of layout {version}; this agent reads {layout.LAYOUT}")
    if entries > layout.MAX_ENTRIES or ring_bytes < layout.MIN_RING_BYTES or ring_bytes & ring_bytes - 1:
        raise SegmentError(f"a segment of {entries} frontiers and a ring of {ring_bytes} bytes")
    for offset, length in (
        (state, layout.STATE_BYTES),
        (control, layout.CONTROL_BYTES),
        (frontiers, layout.FRONTIERS_HEADER_BYTES + entries * layout.FRONTIER_BYTES),
        (ring, layout.RING_HEADER_BYTES + ring_bytes),
    ):
        if offset % layout.ALIGNMENT or not layout.HEADER_BYTES <= offset <= size - length:
            raise SegmentError(f"a section of {length} bytes at {offset} in a segment of {size}")
    return Sections(state, control, frontiers, entries, ring, ring_bytes), thread
