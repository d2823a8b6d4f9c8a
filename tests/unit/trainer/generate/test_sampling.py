"""Drawing the next token: what is filtered, and on what a draw depends."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.generation import Sampling
from megatronapp.trainer.generate.sampling import decayed_top_p, draw, filtered, uniform

LOGITS = torch.tensor([[0.5, 0.1, 0.2, 0.15, 0.05]]).log()
ONE = torch.ones(1, dtype=torch.float64)


def drawn(sampling: Sampling, logits: torch.Tensor, numbers: list[float]) -> list[int]:
    uniforms = torch.tensor(numbers, dtype=torch.float64)
    top_p = torch.full((len(numbers),), sampling.top_p, dtype=torch.float64)
    return draw(logits.expand(len(numbers), -1), sampling, uniforms, top_p).tolist()


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=1e-3)])
def test_the_likeliest_token_is_taken_whatever_the_number(sampling: Sampling) -> None:
    assert drawn(sampling, LOGITS, [0.0, 0.5, 0.999]) == [0, 0, 0]


def test_a_number_falls_to_the_token_whose_share_of_the_line_it_hits() -> None:
    assert drawn(Sampling(), LOGITS, [0.0, 0.49, 0.51, 0.61, 0.79, 0.81, 0.96]) == [0, 0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, [0, 1, 2, 3, 4]),
        (2, 1.0, [0, 2]),
        (0, 0.5, [0]),
        (0, 0.51, [0, 2]),
        (0, 1e-9, [0]),
        (3, 0.58, [0]),  # of three that stay, the first has 0.5 / 0.85
        (3, 0.6, [0, 2]),
        (9, 1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_filters_keep_the_likeliest(top_k: int, top_p: float, kept: list[int]) -> None:
    probabilities = filtered(LOGITS.double(), top_k, ONE * top_p)

    assert probabilities[0].nonzero().flatten().tolist() == kept


def test_draws_are_distributed_as_the_probabilities() -> None:
    count = 4000

    found = Counter(drawn(Sampling(), LOGITS, [uniform(7, position) for position in range(count)]))

    shares = [found[token] / count for token in range(5)]
    assert shares == pytest.approx(LOGITS.exp()[0].tolist(), abs=0.03)


@given(st.integers(0, 2**53), st.integers(0, 2**20))
def test_numbers_lie_in_the_unit_interval_and_repeat(seed: int, position: int) -> None:
    number = uniform(seed, position)

    assert 0 <= number < 1
    assert number * 0.7 < 0.7
    assert number == uniform(seed, position)
    assert number not in (uniform(seed + 1, position), uniform(seed, position + 1))


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=20), st.floats(0, 1, exclude_max=True))
def test_no_token_without_probability_is_drawn(values: list[float], number: float) -> None:
    logits = torch.tensor([[*values, -torch.inf]])

    assert drawn(Sampling(top_p=0.9), logits, [number]) != [len(values)]


def test_top_p_decays_with_each_token_down_to_its_bound() -> None:
    sampling = Sampling(top_p=0.8, top_p_decay=0.5, top_p_bound=0.3)

    assert [decayed_top_p(sampling, drawn) for drawn in range(4)] == [0.8, 0.4, 0.3, 0.3]
