"""A plain reader of the memory that a rank shares with its agent (docs/agent.md), for tests of who writes it."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FILLING, ROWS, STEP_END, FRAME = 0, 1, 2, 3
TRIES = 100_000


class Header(NamedTuple):
    magic: bytes
    layout: int
    pid: int
    thread: int
    reserved: int
    state: int
    control: int
    frontiers: int
    entries: int
    entry_bytes: int
    ring: int
    ring_bytes: int
    bulk: int
    bulk_bytes: int


class State(NamedTuple):
    step: int
    phase: int
    closing: int
    lost: int
    allocated: int
    reserved: int
    peak: int
    total: int


class OpenMessage(NamedTuple):
    step: int
    message: int
    posted_at_ns: int


@dataclass(frozen=True)
class Frontier:
    messages: list[OpenMessage]
    communicator: int
    peer: int
    sending: int
    operation: int
    enqueued: int
    started: int
    completed: int
    enqueued_at_ns: int
    completed_at_ns: int
    open: int


class Record(NamedTuple):
    kind: int
    number: int
    payload: bytes


class StepEnd(NamedTuple):
    step: int
    start_ns: int
    duration_ns: int
    cpu_ns: int
    reference_ns: int
    reference_error_ns: int
    rows: int
    traced: int
    phases: int
    known: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_second: float
    teraflops: float
    total_steps: int
    marks: int


@dataclass(frozen=True)
class Step:
    """A step's end, and its rows by column."""

    end: StepEnd
    columns: dict[str, npt.NDArray[np.int64]]


@dataclass
class SegmentReader:
    """Reads the segment behind a descriptor or path from its oldest record on."""

    file: int | str
    bulk: bool = False
    """Reads the ring of frames instead."""
    overwritten: int = 0
    _position: int = 0
    _number: int = 0
    _rows: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        descriptor = os.open(self.file, os.O_RDWR) if isinstance(self.file, str) else os.dup(self.file)
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        os.close(descriptor)
        self.header = Header(*struct.unpack_from("<8s4I3Q2I4Q", self._memory))

    def u64(self, offset: int) -> int:
        value: int = struct.unpack_from("<Q", self._memory, offset)[0]
        return value

    def _locked(self, offset: int, size: int) -> bytes:
        for _ in range(TRIES):
            before = self.u64(offset)
            copy = self._memory[offset : offset + size]
            if before % 2 == 0 and self.u64(offset) == before:
                return copy
        raise AssertionError("the writer never left the section")

    def state(self) -> State:
        return State(*struct.unpack_from("<qII5Q", self._locked(self.header.state, 128), 8))

    def activity(self) -> tuple[int, int]:
        """(name, µs); name -1: none."""
        word = self.u64(self.header.state + 64)
        return (word >> 48) - 1, word & (1 << 48) - 1

    def marks(self) -> tuple[int, int]:
        """(since the process began, of the newest step)."""
        return self.u64(self.header.state + 72), self.u64(self.header.state + 80)

    def unpassed_mark_ns(self) -> int:
        return self.u64(self.header.state + 88)

    def frontiers(self) -> list[Frontier]:
        used = struct.unpack_from("<I", self._memory, self.header.frontiers)[0]
        return [self._frontier(self.header.frontiers + 64 + i * self.header.entry_bytes) for i in range(used)]

    def _frontier(self, offset: int) -> Frontier:
        entry = self._locked(offset, self.header.entry_bytes)
        fields = struct.unpack_from("<IiIi3Q2qI", entry, 8)
        _, peer, _, operation, *_, open_ = fields
        told = max(open_, int(peer < 0 <= operation))  # a collective's newest where all are through
        offsets = range(72, 72 + 24 * min(told, 16), 24)
        return Frontier([OpenMessage(*struct.unpack_from("<QQq", entry, offset)) for offset in offsets], *fields)

    def control(self, serial: int, enabled: int, interval: int, continuous: int, granularity: int) -> None:
        """What the agent does."""
        offset = self.header.control
        before = self.u64(offset)
        struct.pack_into("<Q", self._memory, offset, before + 1)
        struct.pack_into("<4IQ", self._memory, offset + 8, enabled, interval, continuous, granularity, serial)
        struct.pack_into("<Q", self._memory, offset, before + 2)

    def die_while_writing_control(self) -> None:
        struct.pack_into("<Q", self._memory, self.header.control, self.u64(self.header.control) + 1)

    @property
    def ring(self) -> tuple[int, int]:
        """Offset, bytes of its data."""
        header = self.header
        return (header.bulk, header.bulk_bytes) if self.bulk else (header.ring, header.ring_bytes)

    def head(self) -> int:
        return self.u64(self.ring[0])

    def tail(self) -> int:
        return self.u64(self.ring[0] + 8)

    def records(self) -> list[Record]:
        """Those that have come since the last call and can still be read."""
        found, head = [], self.head()
        self._position = max(self._position, self.tail())
        while self._position < head:
            at = self.ring[0] + 64 + self._position % self.ring[1]
            size, kind = struct.unpack_from("<IH", self._memory, at)
            copy = self._memory[at : at + size]
            if self.tail() > self._position:
                self._position = self.tail()
                continue
            self._position += size
            if kind != FILLING:
                number: int = struct.unpack_from("<Q", copy, 8)[0]
                self.overwritten += number - self._number - 1
                self._number = number
                found.append(Record(kind, number, copy[16:]))
        return found

    def ended(self, step: int) -> bool:
        """Whether this step's end has come since the last call. Keeps the interpreter's lock."""
        ends = (record.payload for record in self.records() if record.kind == STEP_END)
        return any(struct.unpack_from("<Q", payload)[0] == step for payload in ends)

    def steps(self, columns: tuple[str, ...]) -> list[Step]:
        """Whole steps; of a reader that keeps up."""
        found = []
        for record in self.records():
            if record.kind == ROWS:
                _, rows, count = struct.unpack_from("<QII", record.payload)
                self._rows.append(np.frombuffer(record.payload, np.int64, offset=16).reshape(count, rows))
            elif record.kind == STEP_END:
                table = np.concatenate([np.zeros((len(columns), 0), np.int64), *self._rows], axis=1)
                end = StepEnd(*struct.unpack_from("<Q5q4I5dQQ", record.payload))
                found.append(Step(end, dict(zip(columns, table, strict=True))))
                self._rows.clear()
        return found
