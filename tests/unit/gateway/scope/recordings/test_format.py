"""A recording's file is read back as written, whatever happened to who wrote it; other bytes are refused."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import Codec, Dtype, Flag, Frame, Kind, Quantizer, pack
from megatronapp.gateway.scope.recordings.format import Entry, Header, packed_entry, read_index
from megatronapp.gateway.scope.recordings.format import Kind as EntryKind

ASKED = b'{"id": 1, "expression": "layers[0].resid_post|token( 0)"}'
EVENT = b'{"event": {"offset": "1", "event": {"alert": {"kind": "nonfinite"}}}}'


def frame(step: int = 1) -> bytes:
    return pack(
        Frame(
            kind=Kind.TENSOR,
            subscription=1,
            sequence=1,
            captured_unix_us=0,
            step=step,
            microbatch=None,
            layer=0,
            dtype=Dtype.F32,
            quantizer=Quantizer.NONE,
            codec=Codec.RAW,
            flags=Flag(0),
            missing_shards=0,
            dims=(2,),
            scale=1.0,
            bias=0.0,
            low=0.0,
            high=0.0,
            sections={},
            payload=bytes(8),
        )
    )


WHOLE = (
    Header(name="one", run="r").packed()
    + packed_entry(EntryKind.ASKED, 0, ASKED)
    + packed_entry(EntryKind.TEXT, 10, EVENT)
    + packed_entry(EntryKind.FRAME, 20, frame())
)


def test_a_file_is_read_as_it_was_written() -> None:
    index = read_index(io.BytesIO(WHOLE))

    event, picture = index.entries
    (asked,) = index.subscriptions
    assert (index.header.name, index.seconds) == ("one", 20e-6)
    assert asked.expression == "layers[0].resid_post | token(0)"
    assert [WHOLE[entry.offset : entry.offset + entry.size] for entry in index.entries] == [EVENT, frame()]
    assert (event.asked, picture.asked, picture.replaces) == (None, asked, (0,))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_change_of_a_byte_does_more_than_be_refused(at: int, by: int) -> None:
    changed = bytearray(WHOLE)
    changed[at] ^= by
    try:
        index = read_index(io.BytesIO(bytes(changed)))
    except DataError:
        return
    assert all(isinstance(entry, Entry) and entry.offset + entry.size <= len(WHOLE) for entry in index.entries)


@given(st.binary(max_size=300))
def test_bytes_behind_a_header_are_refused(data: bytes) -> None:
    if not data:
        return
    with pytest.raises(DataError):
        read_index(io.BytesIO(Header().packed() + b"\xff" + data))
