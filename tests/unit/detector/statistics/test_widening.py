"""Noise that wanders in jobs of few ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatronapp.detector import profiles
from megatronapp.detector.statistics import sequential
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.steps import Floats

THRESHOLD = 16.2
NOISE = replace(profiles.GPU.noise["compute_effect"], clip=sequential.clip(THRESHOLD, 3))
FEW, JOBS = 8, 10


def wandering(steps: int, seed: int) -> Floats:
    """Beside the median of all: as bench.scale's model `drift`."""
    random = np.random.default_rng(seed)
    own = random.normal(0, 0.007, (steps, FEW))
    for step in range(1, steps):
        own[step] = 0.95 * own[step - 1] + np.sqrt(1 - 0.95**2) * own[step]
    own += random.normal(0, 0.005, (steps, FEW))
    return own - np.median(own, axis=1, keepdims=True)


def alarms(values: Floats, first: int = 0) -> dict[int, int]:
    """Of each item that was alarmed, after how many steps from the first on."""
    monitor, found = Monitor(NOISE, THRESHOLD), dict[int, int]()
    for step, row in enumerate(values):
        monitor.observe(step + 1, np.arange(len(row)), row)
        for item in np.flatnonzero(monitor.alarmed).tolist():
            found.setdefault(item, step + 1 - first)
    return found


def test_noise_that_wanders_raises_no_alarm_in_small_jobs_however_young_they_are() -> None:
    assert [alarms(wandering(120, seed)) for seed in range(4 * JOBS)] == [{}] * 4 * JOBS


@pytest.mark.parametrize("onset", [30, 45, 150])
def test_an_item_that_is_slow_beyond_that_is_found_in_a_small_job(onset: int) -> None:
    for seed in range(JOBS):
        values = wandering(onset + 40, seed)
        values[onset:, 3] += 0.10

        found = alarms(values, onset)

        assert set(found) == {3}
        assert 3 <= found[3] <= 12


def test_where_noise_does_not_wander_a_small_job_finds_in_some_steps_what_is_little_slow() -> None:
    for seed in range(JOBS):
        values = np.random.default_rng(seed).normal(0, 0.005, (80, FEW))
        values[40:, 3] += 0.03

        found = alarms(values, 40)

        assert set(found) == {3}
        assert found[3] <= 16
