"""What a request may ask for beside sampling: ends, a first token, logits, what must not follow a colon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatronapp.core.generation import GenerationRequest, Sampling, Started
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.data.tokenizers import ByteTokenizer
from tests.integration.trainer.generate.models import GREEDY, answers, ends, ids, log_probabilities, tokens_of

BASE = GenerationRequest(prompts=("He",), max_new_tokens=12, sampling=GREEDY, stop_at_end_of_document=False)
END, NEWLINE = ByteTokenizer.eod, ord("\n")


def test_a_stop_token_and_a_stop_word_end_a_row_and_are_not_in_its_text(folder: Path) -> None:
    request = replace(BASE, sampling=Sampling(), seed=9)
    [plain] = answers(folder, [request])
    drawn = ids(plain)[0]
    # A token and a byte of which none came before, so that the row goes that far.
    at = next(place for place in range(2, 12) if drawn[place] not in drawn[:place] and drawn[place] < 128)
    word = chr(drawn[at])

    by_token, by_word = answers(
        folder, [replace(request, stop_tokens=(drawn[at],)), replace(request, stop_words=(word,))]
    )

    for events in (by_token, by_word):
        assert ids(events)[0] == drawn[: at + 1]
        assert ends(events)[0].reason == "stop"
        assert ends(events)[0].text == ByteTokenizer().detokenize(drawn[:at])
        assert "".join(token.delta for token in tokens_of(events, 0)) == ends(events)[0].text


def test_a_first_token_is_added_once(folder: Path) -> None:
    request = replace(BASE, prompts=("", "He", (END, 72)), add_bos=True, max_new_tokens=2)

    started = answers(folder, [request])[0][0]

    assert isinstance(started, Started)
    assert [[token.id for token in row] for row in started.rows] == [[END], [END, 72, 101], [END, 72]]


def test_logits_are_those_of_the_probabilities_and_without_padding(folder: Path) -> None:
    request = replace(BASE, prompts=("He", "the fox"), logits=True, prompt_log_probabilities=True, max_new_tokens=3)

    [events] = answers(folder, [request])

    for row in range(2):
        for token in tokens_of(events, row):
            logits = np.frombuffer(token.logits, "<f4").astype(np.float64)
            assert logits.shape == (ByteTokenizer.vocab_size,)
            expected = logits[token.id] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            assert token.log_probability == pytest.approx(expected, abs=1e-6)
        assert len(tokens_of(events, row)) == len(request.prompts[row]) - 1 + 3


def test_a_newline_never_follows_a_colon_where_that_is_asked(folder: Path) -> None:
    """Nearly all tokens are equally likely at this temperature."""
    request = replace(BASE, prompts=("a:",) * 512, max_new_tokens=1, sampling=Sampling(temperature=100.0), seed=4)
    other = replace(request, prompts=("a;",) * 512)

    asked = [request, other, *(replace(each, no_newline_after_colon=True) for each in (request, other))]

    free, free_other, bound, bound_other = map(ids, answers(folder, asked))

    assert [NEWLINE] in free.values()
    assert [NEWLINE] not in bound.values()
    assert bound_other == free_other


def test_prompts_alone_can_be_scored(folder: Path) -> None:
    request = replace(BASE, prompts=("He said", "a"), max_new_tokens=0, prompt_log_probabilities=True)

    [events] = answers(folder, [request])

    assert list(log_probabilities(events)) == list(range(1, 7))
    assert log_probabilities(events, 1) == {}
    assert {row: (end.reason, end.text) for row, end in ends(events).items()} == {0: ("length", ""), 1: ("length", "")}
