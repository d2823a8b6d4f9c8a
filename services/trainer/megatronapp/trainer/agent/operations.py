"""The reader's end of what the plug-in for NCCL records (native/nccl, docs/nccl.md): two records of each operation in
the segment's ring, and the lanes in its table, which tell how far each communicator and pair has come, also when the
rank is stuck or dead. What stands there may be a lie; what can't be is left out and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.ring import Record
from megatronapp.trainer.agent.segment import TRIES, Segment

ENQUEUED = struct.Struct("<Ii3Qq2I16s16s16s8s")
"""Lane, root, number, sequence, count, when, channels, timed; operation, type, algorithm, protocol."""
COMPLETED = struct.Struct("<2IQ4q8Q")
LANES_HEADER = struct.Struct("<2IQ")
"""Entries in use, mask, operations without a lane."""
LANES_HEADER_BYTES, LANE_BYTES = 64, 384
LANE = struct.Struct("<QQ3i3I3Q3q32sQ")
"""Lock, communicator, ranks, rank, peer, direction, closed, switches, enqueued, started, completed, when each, name,
lost."""
OLDEST_OFFSET, NEWEST_OFFSET = 128, 232
MAX_LANES = 65_536


class Direction(IntEnum):
    NONE = 0
    SENDS = 1
    RECEIVES = 2


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What was called. `number` counts the operations of a communicator, or the messages of a pair in one direction,
    from 1; `sequence` is NCCL's own number of this function."""

    lane: int
    root: int
    number: int
    sequence: int
    count: int
    at_ns: int
    """CLOCK_MONOTONIC."""
    channels: int
    timed: bool
    """Its completion is told by the device; else it counts as complete when it is launched."""
    operation: str
    type: str
    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Completed:
    """Times of the host are CLOCK_MONOTONIC, those of the device its globaltimer; 0: not known."""

    lane: int
    channels: int
    number: int
    enqueued_ns: int
    launched_ns: int
    start_seen_ns: int
    """When the device's start was told to the host: later than it was, so that it bounds the clocks' offset."""
    end_seen_ns: int
    start_ns: int
    end_ns: int
    waited_for_gpu_ns: int
    waited_for_peer_ns: int
    waited_for_network_ns: int
    """That sends end."""
    waited_for_data_ns: int
    network_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Lane:
    communicator: int
    """NCCL's hash, which all its members have."""
    ranks: int
    rank: int
    """This process's, in the communicator."""
    peer: int
    """-1: of all operations."""
    direction: Direction
    closed: bool
    switches: int
    """How often recording was switched on; messages have no comparable numbers after the second time."""
    enqueued: int
    started: int
    completed: int
    enqueued_ns: int
    started_ns: int
    completed_ns: int
    name: str
    lost: int
    """Operations whose times could not be kept."""
    oldest: Enqueued | None
    """The first that is not through."""
    newest: Enqueued | None


class OperationsReader:
    """Reads a segment that the plug-in writes. Not thread-safe."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._lanes: dict[int, Lane] = {}
        self.implausible = 0
        """Records that can't be true."""

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return self._segment.ring.lost

    def records(self) -> list[Enqueued | Completed]:
        """What was recorded since the last call, or the first part of it. Raises SegmentError."""
        ring = self._segment.ring
        found = [self._parsed(record) for record in ring.records(ring.head())]
        return [record for record in found if record is not None]

    def lanes(self) -> dict[int, Lane]:
        """By index. An entry that could not be read whole is as it was."""
        header = self._segment.table_copy(0, LANES_HEADER.size)
        used = LANES_HEADER.unpack(header)[0] if len(header) == LANES_HEADER.size else 0
        for index in range(min(used, MAX_LANES)):
            for _ in range(TRIES):
                lane = self._lane(index)
                if lane is not None:
                    self._lanes[index] = lane
                    break
        return dict(self._lanes)

    @property
    def without_lane(self) -> int:
        """Operations of communicators and pairs for which the table had no place."""
        header = self._segment.table_copy(0, LANES_HEADER.size)
        return int(LANES_HEADER.unpack(header)[2]) if len(header) == LANES_HEADER.size else 0

    def _lane(self, index: int) -> Lane | None:
        at = LANES_HEADER_BYTES + index * LANE_BYTES
        entry = self._segment.table_copy(at, LANE_BYTES)
        if len(entry) < LANE_BYTES or self._segment.table_copy(at, 8) != entry[:8] or entry[0] & 1:
            return None
        _, communicator, ranks, rank, peer, direction, closed, switches, *rest = LANE.unpack_from(entry)
        enqueued, started, completed, enqueued_ns, started_ns, completed_ns, name, lost = rest
        if direction > Direction.RECEIVES:
            return None
        return Lane(
            communicator=communicator,
            ranks=ranks,
            rank=rank,
            peer=peer,
            direction=Direction(direction),
            closed=bool(closed),
            switches=switches,
            enqueued=enqueued,
            started=started,
            completed=completed,
            enqueued_ns=enqueued_ns,
            started_ns=started_ns,
            completed_ns=completed_ns,
            name=_text(name),
            lost=lost,
            oldest=_enqueued(entry, OLDEST_OFFSET) if enqueued > completed else None,
            newest=_enqueued(entry, NEWEST_OFFSET) if enqueued else None,
        )

    def _parsed(self, record: Record) -> Enqueued | Completed | None:
        if record.kind == layout.ENQUEUED and len(record.content) == ENQUEUED.size:
            return _enqueued(record.content)
        if record.kind == layout.COMPLETED and len(record.content) == COMPLETED.size:
            return Completed(*COMPLETED.unpack(record.content))
        self.implausible += 1
        return None


def open_operations(lanes: dict[int, Lane]) -> Iterator[tuple[Lane, Enqueued]]:
    """Of each communicator and pair what it is in."""
    return ((lane, lane.oldest) for lane in lanes.values() if lane.oldest is not None)


def _enqueued(content: bytes | memoryview, at: int = 0) -> Enqueued:
    lane, root, number, sequence, count, when, channels, timed, *texts = ENQUEUED.unpack_from(content, at)
    operation, kind, algorithm, protocol = map(_text, texts)
    return Enqueued(
        lane, root, number, sequence, count, when, channels, bool(timed), operation, kind, algorithm, protocol
    )


def _text(field: bytes) -> str:
    text = field.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
