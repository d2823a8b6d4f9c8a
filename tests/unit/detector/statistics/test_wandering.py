"""Items that remember: what they do by themselves is no fault."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.statistics import scale, sequential
from megatronapp.detector.statistics.wandering import Wandering
from megatronapp.detector.steps import Floats

ITEMS = 4000


def series(memory: float, steps: int, seed: int = 0) -> Floats:
    """(items × steps, oldest first) of a first-order autoregression whose steps vary by 1."""
    random, found = np.random.default_rng(seed), np.empty((ITEMS, steps))
    found[:, 0] = random.standard_normal(ITEMS)
    for step in range(1, steps):
        fresh = random.standard_normal(ITEMS)
        found[:, step] = memory * found[:, step - 1] + np.sqrt(1 - memory**2) * fresh
    return found


def learnt(history: Floats) -> tuple[Wandering, Floats, Floats]:
    center = scale.location(history)
    residuals = history - center[:, None]
    samples = np.full(len(history), history.shape[1])
    return Wandering.of(residuals, samples, 1.0), center, scale.scale(history, center)


@pytest.mark.parametrize("memory", [0.5, 0.9, 0.95])
def test_the_memory_of_items_is_found_in_a_history(memory: float) -> None:
    found, *_ = learnt(series(memory, 64))

    assert found.memory == pytest.approx(memory, abs=0.03)


def test_of_independent_steps_nothing_is_changed() -> None:
    samples = np.array([20, 64])

    known = Wandering()

    assert np.array_equal(known.factors(samples), scale.baseline_factor(sequential.WINDOWS, samples))
    assert np.array_equal(known.sums(np.ones((2, 64))), sequential.sums(np.ones((2, 64))))


@pytest.mark.parametrize("memory", [0.5, 0.9, 0.95])
def test_sums_beside_a_history_vary_by_no_more_than_is_told(memory: float) -> None:
    whole = series(memory, 128)
    known, center, sigma = learnt(whole[:, :64])
    newest_first = ((whole - center[:, None]) / np.median(sigma))[:, :63:-1]

    sums = known.sums(newest_first) / (known.factors(np.full(ITEMS, 64)) * np.sqrt(sequential.WINDOWS))

    judged = sums.std(axis=0)[sequential.WINDOWS >= 3]
    assert judged.max() < 1.1
    assert judged.min() > 0.5


def test_two_steps_of_any_size_are_worth_two_that_are_winsorised() -> None:
    known = Wandering(memory=0.9, widened=1.0, surprise=0.2)
    samples, before = np.array([64]), np.zeros(1)

    first = known.bounded(np.array([1e9]), before, 5.0, samples)
    second = known.bounded(np.array([1e9]), first, 5.0, samples)

    assert first + second == pytest.approx(10.0 * known.factors(samples)[:, 2])


def test_a_step_that_was_not_measured_is_taken_as_expected() -> None:
    known = Wandering(memory=0.9, widened=1.0, surprise=0.2)

    found = known.bounded(np.array([np.nan]), np.array([2.0]), 5.0, np.array([64]))

    assert found.tolist() == [pytest.approx(1.8)]
