"""Beam search against brute force over a small language."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from megatronapp.trainer.generate.beam import BeamSearch, Way

VOCABULARY, MOST, END = 4, 4, 0


def log_probabilities(ids: tuple[int, ...], seed: int) -> list[float]:
    """Of a made-up language: the next token's, after these."""
    generator = torch.Generator().manual_seed(seed * 7919 + sum((token + 1) * 31**at for at, token in enumerate(ids)))
    return torch.randn(VOCABULARY, generator=generator).double().log_softmax(-1).tolist()


def candidates(ids: tuple[int, ...], seed: int, width: int) -> list[tuple[int, float]]:
    values = log_probabilities(ids, seed)
    return sorted(enumerate(values), key=lambda each: -each[1])[: 2 * width]


def searched(seed: int, width: int, length_penalty: float) -> tuple[BeamSearch, int]:
    search, steps = BeamSearch(width, MOST, length_penalty, lambda ids: ids[-1] == END), 0
    while not search.done:
        search = search.advance([candidates(way.ids, seed, width) for way in search.open])
        steps += 1
    return search, steps


def brute_force(seed: int, length_penalty: float) -> list[tuple[int, ...]]:
    """All texts that end at END or at their length, best first."""
    texts = {}
    for ids in product(range(VOCABULARY), repeat=MOST):
        ends = ids.index(END) + 1 if END in ids else MOST
        text = ids[:ends]
        total = sum(log_probabilities(text[:at], seed)[token] for at, token in enumerate(text))
        texts[text] = total / len(text) ** length_penalty
    return sorted(texts, key=lambda text: -texts[text])


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_with_room_for_all_ways_it_finds_the_best_texts(seed: int, length_penalty: float) -> None:
    search, _ = searched(seed, VOCABULARY**MOST, length_penalty)

    assert [way.ids for way in search.best] == brute_force(seed, length_penalty)


def straightforward(seed: int, width: int, length_penalty: float) -> list[tuple[int, ...]]:
    """Beam search without an early end."""
    going, ended = [((), 0.0)], []
    for _ in range(MOST):
        ways = [
            ((*ids, token), total + value)
            for ids, total in going
            for token, value in enumerate(log_probabilities(ids, seed))
        ]
        ways.sort(key=lambda way: -way[1])
        ended += [way for way in ways[: 2 * width] if way[0][-1] == END]
        going = [way for way in ways[: 2 * width] if way[0][-1] != END][:width]
    best = sorted([*ended, *going], key=lambda way: -way[1] / len(way[0]) ** length_penalty)
    return [ids for ids, _ in best[:width]]


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_narrow_beams_end_early_only_when_nothing_better_can_come(width: int, length_penalty: float) -> None:
    for seed in range(20):
        search, _ = searched(seed, width, length_penalty)

        assert [way.ids for way in search.best] == straightforward(seed, width, length_penalty)


def test_a_beam_knows_what_it_continues() -> None:
    search = BeamSearch(2, 3, 1.0, lambda ids: False).advance([[(1, -0.1), (2, -0.2), (3, -5.0)]])

    search = search.advance([[(3, -4.0), (1, -5.0)], [(2, -0.1), (1, -0.2)]])

    assert [(way.ids, way.parent) for way in search.open] == [((2, 2), 1), ((2, 1), 1)]
    assert search.open[0].log_probability == pytest.approx(-0.3)


def test_a_score_is_the_log_probability_over_the_length_to_the_penalty() -> None:
    way = Way((1, 2, 3), -6.0)

    scores = [BeamSearch(1, 9, penalty, lambda ids: False).score(way) for penalty in (0.0, 1.0, 2.0)]

    assert scores == [-6.0, -2.0, pytest.approx(-6 / 9)]
    assert math.isfinite(BeamSearch(1, 9, 1.0, lambda ids: False).score(Way((), 0.0)))
