"""Token ids to text, where characters are longer than tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from megatronapp.trainer.generate.text import GrowingText

BYTES = ByteTokenizer()
BPE = HuggingFaceTokenizer(Path(__file__).parents[4] / "examples" / "data")


def grown(tokenizer: ByteTokenizer | HuggingFaceTokenizer, ids: list[int]) -> list[str]:
    text = GrowingText(tokenizer)
    return [*(text.add(token) for token in ids), text.end()]


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_make_the_text_and_none_holds_half_a_character(
    tokenizer: ByteTokenizer | HuggingFaceTokenizer, text: str
) -> None:
    pieces = grown(tokenizer, tokenizer.tokenize(text))

    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces) or "�" in text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_come_out_as_decoded_in_one(ids: list[int]) -> None:
    assert "".join(grown(BYTES, ids)) == BYTES.detokenize(ids)


@given(st.lists(st.integers(1, BPE.vocab_size - 1), max_size=20))
def test_tokens_in_any_order_come_out_as_decoded_in_one(ids: list[int]) -> None:
    assert "".join(grown(BPE, ids)) == BPE.detokenize(ids)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = BYTES.tokenize("aé€😀")

    assert grown(BYTES, ids) == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_what_is_never_completed_comes_at_the_end() -> None:
    assert grown(BYTES, [*b"a\xf0\x9f"]) == ["a", "", "", "�"]
    assert grown(BYTES, [*b"\xf0\x9f", *b"b"]) == ["", "", "�b", ""]
