"""What the agent keeps of a rank's NCCL operations: it drains their ring, counts what was lost, and knows what each
communicator is in when the rank has died."""

from __future__ import annotations

import time

from megatronapp.trainer.agent.megatrace_log import MegatraceLog
from megatronapp.trainer.agent.nccl_frontiers import frontiers_of
from megatronapp.trainer.agent.nccl_tallies import NcclTallies
from megatronapp.trainer.agent.nccl_times import RecordedOperations
from megatronapp.trainer.agent.operations import Direction, Enqueued, Lane, OperationsReader, open_operations
from megatronapp.trainer.agent.segment import Segment
from megatronapp.v1 import trace_pb2

SHOWN = 8
"""Operations that a line tells of."""


class KeptOperations:
    """Takes the segment over. All methods are for the agent's thread."""

    def __init__(self, segment: Segment, megatrace: MegatraceLog | None = None) -> None:
        self._segment = segment
        self._megatrace = megatrace
        self._reader = OperationsReader(segment)
        self.recorded = RecordedOperations()
        """Of steps that have not left yet."""
        self._tallies = NcclTallies(self._reader.lanes)
        self.enqueued = self.completed = 0
        """How many have been read."""

    @property
    def lost(self) -> int:
        """Records that nobody has read, and operations of which there is none."""
        return self._reader.lost + self._reader.implausible + self._reader.without_lane

    def read(self) -> None:
        """Take what was recorded since the last call. Raises SegmentError."""
        while records := self._reader.records():
            self.recorded.note(records)
            self._tallies.note(records)
            enqueued = [record for record in records if isinstance(record, Enqueued)]
            self.enqueued += len(enqueued)
            self.completed += len(records) - len(enqueued)
            if self._megatrace is not None:
                self._megatrace.note(enqueued, self._reader.lanes(), time.monotonic())
        self._segment.sent = self._reader.lost  # for the rank, which records less then
        if self._megatrace is not None:
            self._megatrace.tick(time.monotonic())

    def lanes(self) -> dict[int, Lane]:
        """Communicators and pairs, by the number that their operations have."""
        return self._reader.lanes()

    def tallies(self) -> list[trace_pb2.NcclTally]:
        """What has ended since the last call, for a step's summary."""
        return self._tallies.take()

    def frontiers(self) -> list[trace_pb2.Frontier]:
        """How far each communicator has come, for the rank's heartbeat."""
        return frontiers_of(self._reader.lanes().values())

    def open(self) -> list[str]:
        """What the rank's communicators are in, in words, the oldest first."""
        found = sorted(open_operations(self._reader.lanes()), key=lambda pair: pair[1].at_ns)
        return [_in_words(lane, operation) for lane, operation in found[:SHOWN]]

    def close(self) -> None:
        if self._megatrace is not None:
            self._megatrace.save()
        self._segment.close()


def _in_words(lane: Lane, operation: Enqueued) -> str:
    name = lane.name or f"{lane.communicator:#x}"
    where = f"rank {lane.rank} of {lane.ranks} in {name}"
    peer = "" if lane.direction is Direction.NONE else f" with rank {lane.peer}"
    state = "begun on the device" if lane.started >= operation.number else "not begun on the device"
    return f"{operation.operation} {operation.number}{peer} ({where}): enqueued, {state}, not ended"
