"""Measures of captured values, on values whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from megatronapp.core.scope.measures import (
    cosine,
    direct_logit_attribution,
    edit_distance,
    first_difference,
    head_scores,
    kl_divergence,
    log_softmax,
    relative_l2,
)

LOGITS = arrays(np.float64, (3, 5), elements=st.floats(-30, 30))
TOKENS = st.lists(st.integers(0, 3), max_size=8)


@given(LOGITS, LOGITS, st.floats(-50, 50))
def test_divergence_is_of_distributions(clean: np.ndarray, other: np.ndarray, shift: float) -> None:
    found = kl_divergence(clean, other)

    assert (found > -1e-9).all()
    np.testing.assert_allclose(kl_divergence(clean, clean + shift), 0, atol=1e-9)
    np.testing.assert_allclose(np.exp(log_softmax(clean)).sum(-1), 1)


def test_divergence_is_the_sum_by_hand() -> None:
    assert kl_divergence(np.log([0.5, 0.5]), np.log([0.25, 0.75])) == pytest.approx(
        0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    )


@given(arrays(np.float32, 4, elements=st.floats(-9, 9, width=32)), st.floats(0.5, 4))
def test_distances_of_a_scaled_vector(value: np.ndarray, scale: float) -> None:
    length = float(np.linalg.norm(value.astype(np.float64)))

    assert relative_l2(value, value) == 0
    assert cosine(value, value) == pytest.approx(1)
    if length > 1e-6:
        assert relative_l2(value, value.astype(np.float64) * scale) == pytest.approx(abs(scale - 1), abs=1e-9)
        assert cosine(value, -scale * value) == pytest.approx(-1)


@given(TOKENS, TOKENS)
def test_sequences_differ_where_they_first_do(one: list[int], other: list[int]) -> None:
    place = first_difference(one, other)

    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]
    assert edit_distance(one, other) == edit_distance(other, one) <= max(len(one), len(other))
    assert (edit_distance(one, other) == 0) == (one == other)


def test_a_word_is_edited() -> None:
    assert edit_distance(list(b"kitten"), list(b"sitting")) == 3


def test_heads_are_known_by_what_they_attend_to() -> None:
    tokens = [7, 8, 9, 7, 8, 9]
    previous, sink, induction = np.zeros((3, 6, 6))
    for query in range(6):
        previous[query, max(query - 1, 0)] = 1
        sink[query, 0] = 1
        induction[query, query - 2 if query >= 3 else 0] = 1

    scores = head_scores(np.stack([previous, sink, induction]), tokens)

    assert scores.previous_token.tolist() == [1, 0.2, 0.2]
    assert scores.sink[1] == 1
    assert scores.induction.tolist() == [0, 0, 1]
    assert not scores.entropy.any()


def test_attention_that_is_spread_has_entropy_and_no_repetition_no_induction() -> None:
    spread = np.tril(np.ones((1, 4, 4)))
    scores = head_scores(spread / spread.sum(-1, keepdims=True), [1, 2, 3, 4])

    assert scores.entropy[0] == pytest.approx(np.log([1, 2, 3, 4]).mean())
    assert np.isnan(scores.induction[0])


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_attributions_sum_to_the_logit_of_the_normed_stream(seed: int, centered: bool) -> None:
    draw = np.random.default_rng(seed).standard_normal
    layers, heads, hidden = 3, 2, 8
    embed, of_heads, mlps, bias = draw(hidden), draw((layers, heads, hidden)), draw((layers, hidden)), draw(hidden)
    attention = of_heads.sum(1) + bias
    weight, direction = draw(hidden), draw(hidden)

    found = direct_logit_attribution(
        embed, of_heads, attention, mlps, direction, norm_weight=weight, epsilon=1e-5, centered=centered
    )

    final = embed + attention.sum(0) + mlps.sum(0)
    final = final - final.mean() if centered else final
    expected = (final / np.sqrt((final**2).mean() + 1e-5) * weight) @ direction
    assert found.total == pytest.approx(expected, abs=1e-9)
    assert found.embed + found.heads.sum() + found.biases.sum() + found.mlps.sum() == pytest.approx(expected, abs=1e-9)
