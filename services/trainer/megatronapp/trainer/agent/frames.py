"""Bulk frames: what a plug-in captures in the rank, too large for the ring of small records (docs/agent.md)."""

from __future__ import annotations

from dataclasses import dataclass

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
