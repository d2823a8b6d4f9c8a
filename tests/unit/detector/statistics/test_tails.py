from __future__ import annotations

import math

import numpy as np
import pytest

from megatronapp.detector.statistics import sequential, tails
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.statistics.noise import Noise

THRESHOLD = 20.8
"""Of a job of 1,024 ranks."""


def test_normal_residuals_are_taken_as_they_are() -> None:
    residuals = np.random.default_rng(1).normal(0, 0.85, (1024, 64))

    assert tails.factors(residuals, 4.94, THRESHOLD) == pytest.approx(np.ones(len(sequential.WINDOWS)))


@pytest.mark.parametrize("share", [0.003, 0.02, 0.1])
def test_sums_of_outliers_that_are_larger_are_as_rare_as_promised(share: float) -> None:
    clip, samples = 4.0, 100_000
    residuals = np.zeros((1, samples))
    residuals[0, : round(share * samples)] = clip

    sums = sequential.needed(THRESHOLD) * tails.factors(residuals, clip, THRESHOLD)

    for steps, needed, normal in zip(sequential.WINDOWS.tolist(), sums, sequential.needed(THRESHOLD), strict=True):
        assert reached(steps, share, needed / clip) <= math.exp(-THRESHOLD)
        assert needed >= normal


def reached(steps: int, share: float, outliers: float) -> float:
    """Probability of so many outliers, or more, in so many steps."""
    least = math.ceil(outliers - 1e-9)
    return sum(math.comb(steps, n) * share**n * (1 - share) ** (steps - n) for n in range(least, steps + 1))


def test_what_is_not_measured_tells_nothing() -> None:
    residuals = np.full((3, 64), np.nan)

    assert tails.factors(residuals, 4.0, THRESHOLD).tolist() == [1.0] * len(sequential.WINDOWS)


def test_noise_with_heavy_tails_alarms_no_more_often_than_promised() -> None:
    """The work of a step is skewed, as where sequences are of any length."""
    random, threshold, ranks, steps = np.random.default_rng(3), 9.0, 256, 300
    values = np.log(0.7 + 0.3 * np.exp(random.normal(0, 0.8, (steps, ranks))))
    noise = Noise(0.0033, 0.01, clip=sequential.clip(threshold, 3), allowance=math.inf, smallest=0.02)
    monitor, alarms = Monitor(noise, threshold), 0

    for step, row in enumerate(values, start=1):
        before = np.resize(monitor.alarmed, ranks) if len(monitor) else np.zeros(ranks, bool)
        monitor.observe(step, np.arange(ranks), row)
        alarms += int(np.count_nonzero(monitor.alarmed & ~before))

    assert alarms <= ranks * steps / math.exp(threshold)
