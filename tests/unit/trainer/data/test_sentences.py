"""Text into sentences: nothing is lost, and what only looks like an end is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.data.sentences import split_sentences


@given(st.lists(st.sampled_from([*"aZ1 .!?。\n\"'()", "Dr", "e.g"]), max_size=60).map("".join))
def test_sentences_are_the_text_but_for_blanks(text: str) -> None:
    sentences = split_sentences(text)

    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ('"Why?" she asked. "Because."', ['"Why?" she asked.', '"Because."']),
        ("Dr. J. Smith paid 3.50, i.e. little.", ["Dr. J. Smith paid 3.50, i.e. little."]),
        ("He went to Rome ... and stayed.", ["He went to Rome ... and stayed."]),
        ("A title\n\nThe text.", ["A title", "The text."]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("", []),
    ],
)
def test_an_end_is_told_from_an_abbreviation(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences
