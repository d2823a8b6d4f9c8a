"""Texts of tokens come back, are bounded, and hostile ones are refused."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import MAX_SECTION_BYTES, Frame, FrameError, Section, pack, unpack
from megatronapp.core.scope.token_texts import MAX_BYTES, MAX_TEXT_BYTES, pack_texts, unpack_texts


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.text(st.characters(exclude_categories=["Cs"]), max_size=16)))
def test_texts_come_back_as_they_were(texts: dict[int, str]) -> None:
    assert unpack_texts(pack_texts(texts)) == texts


def test_a_long_text_is_cut_between_characters() -> None:
    [(token, text)] = unpack_texts(pack_texts({7: "x" + "é" * 1000})).items()

    assert token == 7
    assert text == "x" + "é" * ((MAX_TEXT_BYTES - 1) // 2)


def test_half_a_character_becomes_one_that_can_be_sent() -> None:
    assert unpack_texts(pack_texts({0: "\ud800"})) == {0: "?"}


def test_there_are_no_more_than_a_frame_has_room_for() -> None:
    data = pack_texts(dict.fromkeys(range(10000), "word" * 16))

    assert len(data) <= MAX_BYTES < MAX_SECTION_BYTES
    assert list(unpack_texts(data)) == list(range(len(unpack_texts(data))))


def entry(token: int, data: bytes, size: int | None = None) -> bytes:
    return struct.pack("<IH", token, len(data) if size is None else size) + data


HOSTILE = {
    "cut": b"\1\0\0",
    "longer than it is": entry(1, b"a", 9),
    "no UTF-8": entry(1, b"\xff"),
    "twice": entry(1, b"a") * 2,
    "a long one": entry(1, b"a" * (MAX_TEXT_BYTES + 1)),
    "many": b"".join(entry(token, b"a" * 60) for token in range(2048)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_frame_with_hostile_texts_is_refused(data: bytes) -> None:
    frame = pack(Frame(dims=(1,), payload=bytes(4), sections={Section.TOKEN_TEXTS: data}))

    with pytest.raises(FrameError):
        unpack(frame)


@given(st.binary(max_size=200))
def test_any_bytes_are_texts_or_an_error(data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert unpack_texts(pack_texts(unpack_texts(data))) == unpack_texts(data)
