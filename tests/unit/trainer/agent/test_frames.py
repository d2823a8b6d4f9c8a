"""A record of the bulk ring is a frame, or is refused."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.frames import Frame
from megatronapp.trainer.agent.ring import Record, SegmentError
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.plugins.scan.segment_writer import SegmentWriter

RING, BULK = 4096, 1 << 14
SECTIONS = layout.Sections.of(RING, 512, BULK)
WORDS = st.integers(0, (1 << 64) - 1).map(lambda word: word.to_bytes(8, "little"))


def content(descriptor: int, payload: int, size: int) -> memoryview:
    return memoryview(struct.pack("<2IQ", descriptor, 0, payload) + bytes(size))


def test_a_frames_parts_are_told_apart() -> None:
    record = Record(layout.FRAME, 7, memoryview(struct.pack("<2IQ8s8s", 3, 0, 5, b"abc", b"value")))

    frame = Frame.of(record)

    assert (frame.number, bytes(frame.descriptor), bytes(frame.payload)) == (7, b"abc", b"value")


@pytest.mark.parametrize(
    "record",
    [
        Record(layout.ROWS, 1, content(0, 0, 0)),
        Record(layout.FRAME, 1, memoryview(bytes(8))),
        Record(layout.FRAME, 1, content(8, 8, 8)),
        Record(layout.FRAME, 1, content(0, 8, 16)),
        Record(layout.FRAME, 1, content((1 << 32) - 1, 0, 16)),
        Record(layout.FRAME, 1, content(0, (1 << 64) - 1, 16)),
        Record(layout.FRAME, 1, content(16, (1 << 64) - 16, 0)),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(record: Record) -> None:
    with pytest.raises(SegmentError, match=r"among the frames|a frame of"):
        Frame.of(record)


@given(data=st.lists(st.one_of(WORDS, st.sampled_from([bytes(8), b"\x08" + bytes(7)]))).map(b"".join))
def test_bytes_are_a_frame_within_them_or_refused(data: bytes) -> None:
    try:
        frame = Frame.of(Record(layout.FRAME, 1, memoryview(data)))
    except SegmentError:
        return
    assert layout.FRAME_HEAD.size + frame.descriptor.nbytes + frame.payload.nbytes <= len(data)


@pytest.mark.parametrize(
    ("bulk", "bulk_bytes"),
    [
        (0, BULK),
        (SECTIONS.bulk, 0),
        (SECTIONS.bulk, BULK - 64),
        (SECTIONS.bulk, BULK << 1),
        (SECTIONS.bulk, 2048),
        (SECTIONS.bulk, 1 << 29),
        (SECTIONS.bulk, 1 << 63),
        (SECTIONS.bulk + 8, BULK),
        (SECTIONS.bulk + 64, BULK),
        (SECTIONS.size, BULK),
        (64, BULK),
        (1 << 63, BULK),
    ],
)
def test_a_header_whose_bulk_ring_cannot_be_is_refused(bulk: int, bulk_bytes: int) -> None:
    writer = SegmentWriter(RING, bulk_bytes=BULK)
    os.pwrite(writer.fd, struct.pack("<2Q", bulk, bulk_bytes), 72)

    with pytest.raises(SegmentError, match=r"a ring of frames of|a section of"):
        Segment(os.dup(writer.fd))

    writer.close()


@given(
    sizes=st.lists(st.integers(0, 500), max_size=40),
    at=st.one_of(st.sampled_from([0, 8, 64, 68, 72, 80, 84, 88]), st.integers(0, 64 + BULK - 64)),
    data=st.one_of(WORDS, st.binary(max_size=64)),
)
@example(sizes=[8], at=0, data=b"\xff" * 8)
@example(sizes=[8], at=0, data=(1 << 40).to_bytes(8, "little"))
@example(sizes=[8], at=64, data=bytes(8))
@example(sizes=[8], at=80, data=b"\xff" * 16)
def test_bytes_anywhere_in_the_bulk_ring_are_refused_or_read(sizes: list[int], at: int, data: bytes) -> None:
    writer = SegmentWriter(RING, bulk_bytes=BULK)
    for size in sizes:
        writer.put_frame(b"d", bytes(size))
    os.pwrite(writer.fd, data, SECTIONS.bulk + at)
    segment = Segment(os.dup(writer.fd))
    assert segment.bulk is not None

    with suppress(SegmentError):
        for record in segment.bulk.records(segment.bulk.head()):
            Frame.of(record)

    assert segment.ring.records(segment.ring.head()) == []
    segment.close()
    writer.close()
