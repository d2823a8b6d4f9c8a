"""Bulk frames: what a plug-in captures in the rank, too large for the ring of small records (docs/agent.md)."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import MAX_SHARD_BYTES
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.ring import Record, SegmentError


@dataclass(frozen=True, slots=True)
class Frame:
    """Both parts are as the plug-in wrote them; nothing was checked but their sizes."""

    number: int
    """From 1; those that are missing were overwritten."""
    descriptor: memoryview
    payload: memoryview

    @classmethod
    def of(cls, record: Record) -> Frame:
        """Views of a record of the bulk ring. Raises SegmentError for one that is no frame."""
        content = record.content
        if record.kind != layout.FRAME or len(content) < layout.FRAME_HEAD.size:
            raise SegmentError(f"a record of kind {record.kind} and {len(content)} bytes among the frames")
        descriptor_bytes, _, payload_bytes = layout.FRAME_HEAD.unpack_from(content)
        payload_at = layout.FRAME_HEAD.size + layout.padded(descriptor_bytes)
        if payload_at + layout.padded(payload_bytes) != len(content):
            raise SegmentError(f"a frame of {descriptor_bytes} and {payload_bytes} bytes in one of {len(content)}")
        descriptor = content[layout.FRAME_HEAD.size :][:descriptor_bytes]
        return cls(record.number, descriptor, content[payload_at:][:payload_bytes])


class Parts:
    """Puts MegaScope's frames together. The parts of one follow each other in the ring; one that was overwritten before
    it was read takes its frame with it."""

    def __init__(self) -> None:
        self._tap = self._count = 0
        self._held: list[memoryview] = []
        """The first parts of a frame, of which more are to come."""

    def add(self, frame: Frame) -> tuple[int, bytes] | None:
        """Tap and bytes of the frame whose last part this is. Raises DataError for what is no part of one."""
        if len(frame.descriptor) != layout.FRAME_PART.size:
            raise DataError(f"a scope frame with a descriptor of {len(frame.descriptor)} bytes")
        tap, part, count = layout.FRAME_PART.unpack(frame.descriptor)
        if part >= count:
            raise DataError(f"part {part} of a scope frame of {count}")
        if part == 0:
            self._tap, self._count, self._held = tap, count, []
        elif (tap, count, part) != (self._tap, self._count, len(self._held)):
            self._held = []
            return None
        self._held.append(frame.payload)
        if sum(map(len, self._held)) > MAX_SHARD_BYTES:
            self._held = []
            raise DataError(f"a scope frame of more than {MAX_SHARD_BYTES} bytes")
        if len(self._held) < count:
            return None
        whole, self._held = b"".join(self._held), []
        return tap, whole
