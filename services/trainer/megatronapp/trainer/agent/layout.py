"""Where everything lies in the memory that a rank shares with its agent: docs/agent.md, in numbers.

The native recorder (native/scan) has the same in C++. Plain struct and numpy: the ranks import this too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAGIC = b"MGTAPP01"
LAYOUT = 1
ALIGNMENT = 64

HEADER = struct.Struct("<8s4I3Q2I4Q")
"""Magic, layout, pid, thread, 0; offsets of state, control and frontiers; entries and bytes of one; ring, its bytes;
bulk ring, its bytes."""
TABLE = struct.Struct("<2Q")
"""From byte 88: offset and bytes of a section that its owner lays out (operations.py); 0: none."""
TABLE_OFFSET = 88
HEADER_BYTES = 128

STATE_BYTES = 128
STATE = struct.Struct("<q2I5Q")
"""From byte 8, under the lock: step, phase, closing, lost spans, bytes allocated, reserved, at most, of the device."""
ACTIVITY_WORD, MARKS_WORD, STEP_MARKS_WORD, UNPASSED_MARK_WORD = 8, 9, 10, 11
"""Words of 8 bytes from the state's begin."""
ACTIVITY_SHIFT = 48

CONTROL_BYTES = 64
CONTROL = struct.Struct("<4IQ")
"""From byte 8, under the lock: enabled, interval, continuous iterations, granularity, serial."""
SENT_WORD, READ_WORD, BULK_READ_WORD = 4, 5, 6
"""Words from the control's begin, the agent's own: number of the last message, bytes of each ring that were read."""

FRONTIERS_HEADER_BYTES = 64
FRONTIER_BYTES = 512
OPEN_MESSAGES = 16
FRONTIER = struct.Struct("<IiIi3Q2qI4x")
"""From byte 8, under the lock: communicator, peer, sending, operation, enqueued, started, completed, when the newest
was enqueued and completed, open messages."""
OPEN_MESSAGE = struct.Struct("<2Qq")
"""Step, packed message, when it was posted; from byte 72. Of a collective, which stands there alone, be it under way or
else the newest: its elements, and its packed call (calls.py)."""
FRONTIER_DTYPE = np.dtype(
    {
        "names": [
            "lock",
            "communicator",
            "peer",
            "sending",
            "operation",
            "enqueued",
            "started",
            "completed",
            "enqueued_at",
            "completed_at",
            "open",
            "messages",
        ],
        "formats": ["<u8", "<u4", "<i4", "<u4", "<i4", "<u8", "<u8", "<u8", "<i8", "<i8", "<u4", ("<i8", (16, 3))],
        "offsets": [0, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72],
        "itemsize": FRONTIER_BYTES,
    }
)

RING_HEADER_BYTES = 64
HEAD_WORD, TAIL_WORD = 0, 1
RECORD = struct.Struct("<I2HQ")
"""Bytes of the record, kind, 0, number."""
SHORT_RECORD = struct.Struct("<I2H")
"""What a filling has at least."""
FILLING, ROWS, STEP_END, FRAME, ENQUEUED, COMPLETED = range(6)
MIN_RING_BYTES = 4096
MAX_BULK_BYTES = 1 << 28
SHARE_OF_RING = 8
"""No record is larger than the ring over this."""

ROWS_HEAD = struct.Struct("<Q2I")
"""Step, rows, columns."""
END = struct.Struct("<Q5q4I5d2Q8x")
"""The fields of StepEnd."""
FRAME_PART = struct.Struct("<I2H")
"""Descriptor of a scope frame's part: the tap that it is for; which part it is, of how many."""
FRAME_HEAD = struct.Struct("<2IQ")
"""Bytes of the descriptor, 0, bytes of the payload; then both, each filled up to a multiple of 8 bytes."""
KNOWN_LOSS, KNOWN_LEARNING_RATE, KNOWN_GRAD_NORM, KNOWN_SPEED, KNOWN_TERAFLOPS, KNOWN_TOTAL_STEPS = (
    1 << bit for bit in range(6)
)

COLUMNS = (
    "name",
    "first",
    "blocked",
    "microbatch",
    "chunk",
    "layer",
    "communicator",
    "peer",
    "sequence",
    "bytes",
    "tokens",
    "length_squares",
    "stream",
    "message",
    "issue",
    "begin",
    "end",
    "cpu",
    "enqueue",
    "behind",
)


class StepEnd(NamedTuple):
    """What is known of a step once it is over, in the record's order."""

    step: int
    start_ns: int = 0
    duration_ns: int = 0
    cpu_ns: int = 0
    reference_ns: int = 0
    reference_error_ns: int = 0
    rows: int = 0
    traced: int = 0
    phases: int = 0
    """A bit for each Phase that it ran through."""
    known: int = 0
    """KNOWN_* of the values below."""
    loss: float = 0.0
    learning_rate: float = 0.0
    grad_norm: float = 0.0
    tokens_per_second: float = 0.0
    teraflops: float = 0.0
    total_steps: int = 0
    marks: int = 0


STACKS_NAME = "megatronapp-stacks"
"""Of the memory into which a rank's faulthandler writes."""
MAX_ENTRIES = 4096
MAX_SEGMENT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Sections:
    """Offsets in bytes from the segment's begin."""

    state: int
    control: int
    frontiers: int
    entries: int
    ring: int
    ring_bytes: int
    bulk: int = 0
    bulk_bytes: int = 0
    """0: there is no ring of frames."""
    table: int = 0
    table_bytes: int = 0

    @property
    def ring_data(self) -> int:
        return self.ring + RING_HEADER_BYTES

    @property
    def size(self) -> int:
        end = self.ring_data + self.ring_bytes
        return end + RING_HEADER_BYTES + self.bulk_bytes if self.bulk_bytes else end

    @classmethod
    def of(cls, ring_bytes: int, entries: int, bulk_bytes: int = 0) -> Sections:
        """As the recorder in Python lays them out, one behind the other."""
        state = HEADER_BYTES
        control = state + STATE_BYTES
        frontiers = control + CONTROL_BYTES
        ring = frontiers + FRONTIERS_HEADER_BYTES + entries * FRONTIER_BYTES
        bulk = ring + RING_HEADER_BYTES + ring_bytes if bulk_bytes else 0
        return cls(state, control, frontiers, entries, ring, ring_bytes, bulk, bulk_bytes)


def is_ring(ring_bytes: int, most: int = MAX_SEGMENT_BYTES) -> bool:
    """Whether a ring's data may have this size."""
    return MIN_RING_BYTES <= ring_bytes <= most and not ring_bytes & ring_bytes - 1


def padded(size: int) -> int:
    """The next multiple of 8 bytes."""
    return size + 7 & ~7
