"""Stop words in a text that comes piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.generation import GenerationRequest
from megatronapp.trainer.generate.stops import TextUntilStop, end_of_row, stop_ids


@given(st.lists(st.text("ab\n", max_size=4), max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
def test_what_is_shown_is_the_text_up_to_the_first_stop_word(pieces: list[str], words: list[str]) -> None:
    text = TextUntilStop(words)

    shown = "".join(text.feed(piece) for piece in pieces) + text.end()

    whole = "".join(pieces)
    ends = [at for word in words if (at := whole.find(word)) >= 0]
    assert text.stopped == bool(ends)
    assert shown == text.text
    # A word that ends first is seen first, even where a longer one had begun before it.
    assert whole.startswith(shown)
    assert not any(word in shown for word in words)
    if not ends:
        assert shown == whole


def test_what_may_become_a_stop_word_is_held_back() -> None:
    text = TextUntilStop(["END", "\n\n"])

    assert [text.feed(piece) for piece in ("a E", "N", "d", "\n", "x EN", "D more", "z")] == [
        *("a ", "", "ENd", "", "\nx ", "", "")
    ]
    assert (text.text, text.stopped, text.end()) == ("a ENd\nx ", True, "")


@pytest.mark.parametrize(
    ("token", "stopped", "drawn", "end"),
    [(5, False, 1, "stop"), (4, True, 1, "stop"), (4, False, 9, "length"), (5, False, 9, "stop"), (4, False, 8, None)],
)
def test_a_row_ends_at_a_stop_before_its_length(token: int, stopped: bool, drawn: int, end: str | None) -> None:
    assert end_of_row(frozenset({5}), token, stopped, drawn, 9) == end


def test_the_end_of_a_document_stops_unless_asked_not_to() -> None:
    request = GenerationRequest(prompts=("a",), stop_tokens=(3,))
    further = GenerationRequest(prompts=("a",), stop_tokens=(3,), stop_at_end_of_document=False)

    assert (stop_ids(request, 256), stop_ids(further, 256)) == ({3, 256}, {3})
