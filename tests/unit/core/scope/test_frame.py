"""Frames come back as they were, hostile ones are refused, and the committed ones are what is written today."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import (
    HEADER_BYTES,
    Codec,
    Dtype,
    Flag,
    Frame,
    FrameError,
    Kind,
    Section,
    Stamp,
    addressed,
    cells,
    pack,
    stamped,
    unpack,
)
from megatronapp.core.scope.quantize import decode
from tests.support.scope_frames import FOLDER, expectations_text, frames

FRAMES = dict(frames())


def test_committed_frames_are_what_is_written_today() -> None:
    committed = {path.stem: path.read_bytes() for path in FOLDER.glob("*.mscope-frame")}

    assert committed == FRAMES
    assert (FOLDER / "frames.json").read_text() == expectations_text()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_comes_back_as_it_was(name: str) -> None:
    frame = unpack(FRAMES[name])

    assert pack(frame, checksum=name == "asinh") == FRAMES[name]
    assert len(FRAMES[name]) - len(frame.payload) == HEADER_BYTES + -(-_section_bytes(frame) // 16) * 16


def _section_bytes(frame: Frame) -> int:
    return sum(8 + -(-len(data) // 8) * 8 for data in frame.sections.values())


header_values = st.fixed_dictionaries(
    {
        "subscription": st.integers(0, 2**32 - 1),
        "sequence": st.integers(0, 2**64 - 1),
        "captured_unix_us": st.integers(0, 2**64 - 1),
        "step": st.integers(0, 2**32 - 1),
        "microbatch": st.none() | st.integers(0, 2**16 - 2),
        "layer": st.none() | st.integers(0, 2**16 - 2),
        "missing_shards": st.integers(0, 2**16 - 1),
        "flags": st.integers(0, 255).map(Flag),
        "dims": st.lists(st.integers(0, 5), max_size=4).map(tuple),
        "scale": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "low": st.floats(width=32, allow_nan=False),
    }
)


@given(values=header_values, checksum=st.booleans(), codec=st.sampled_from([Codec.RAW, Codec.ZLIB]))
def test_any_header_comes_back(values: dict, checksum: bool, codec: Codec) -> None:
    frame = Frame(**values, high=1.0, sections={Section.REQUEST: b"a"})
    frame = replace(frame, payload=np.arange(frame.elements, dtype="<f4").tobytes()).with_codec(codec)

    back = unpack(pack(frame, checksum=checksum))

    assert replace(back, payload=bytes(back.payload)) == frame
    assert cells(back).tolist() == np.arange(frame.elements).reshape(frame.dims).tolist()


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    _read(data)
    _read(struct.pack("<HB", 0x5C0E, 1) + data)


@given(name=st.sampled_from(sorted(FRAMES)), changes=st.lists(st.tuples(st.integers(0, 159), st.integers(0, 255))))
def test_a_changed_frame_is_a_frame_or_refused(name: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(FRAMES[name])
    for position, value in changes:
        data[position % len(data)] = value

    _read(bytes(data))


def _read(data: bytes) -> None:
    try:
        frame = unpack(data)
        cells(frame)
        if frame.kind is Kind.TENSOR:
            decode(frame)
    except DataError:
        pass


@given(section=st.sampled_from(Section), data=st.binary(max_size=40), name=st.sampled_from(sorted(FRAMES)))
def test_a_section_of_any_bytes_is_one_or_refused(section: Section, data: bytes, name: str) -> None:
    frame = unpack(FRAMES[name])

    _read(pack(replace(frame, sections={**frame.sections, section: data})))


def test_dims_that_multiply_to_nothing_claim_no_memory() -> None:
    frame = Frame(dims=(0, 1 << 31, 1 << 31), codec=Codec.TRIANGLE)

    with pytest.raises(FrameError, match="at most"):
        unpack(pack(frame))


def test_a_payload_that_inflates_beyond_its_dims_is_refused() -> None:
    bomb = replace(Frame(dims=(4,), payload=bytes(1 << 20)).with_codec(Codec.ZLIB))

    with pytest.raises(FrameError, match="16 bytes when inflated"):
        cells(unpack(pack(bomb)))


def test_a_payload_changed_on_the_way_is_refused() -> None:
    data = bytearray(FRAMES["asinh"])
    data[-1] ^= 1

    with pytest.raises(FrameError, match="checksum"):
        unpack(data)


def test_of_an_addressed_frame_only_address_and_number_differ() -> None:
    frame = unpack(addressed(FRAMES["triangle"], 99, 1234))

    assert frame == replace(unpack(FRAMES["triangle"]), subscription=99, sequence=1234)


@pytest.mark.parametrize("name", FRAMES)
def test_a_head_of_another_address_is_that_of_the_frame_with_it(name: str) -> None:
    frame = unpack(FRAMES[name])
    stamp = Stamp(subscription=9, sequence=8, captured_unix_us=7, step=6, microbatch=None, layer=5)
    beside = {Section.REQUEST: b"page-1"}

    head = stamped(frame, stamp, beside)

    assert head + frame.payload == pack(replace(frame, **stamp._asdict(), sections={**frame.sections, **beside}))


def test_a_frame_larger_than_agreed_is_refused() -> None:
    with pytest.raises(FrameError, match="from 80 to 100"):
        unpack(FRAMES["asinh"], max_bytes=100)


def test_a_partial_of_another_type_is_refused() -> None:
    with pytest.raises(FrameError, match="PARTIAL of F32"):
        unpack(pack(Frame(kind=Kind.PARTIAL, dtype=Dtype.F32, dims=(1,), payload=bytes(4))))
