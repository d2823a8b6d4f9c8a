"""Nobody is woken for nothing: two hundred clean jobs with the noise of shared CPU hosts, in blocks, of which
`make test` runs the first."""

from __future__ import annotations

import random

import pytest

from tests.support.detecting import detect, seeds
from tests.support.simulated import GPU, Job, Layout, NoiseModel

LAYOUTS = (Layout(), Layout(pp=4, dp=1), Layout(pp=1, dp=4), Layout(pp=2, dp=1, vpp=2), Layout(pp=1, dp=2, tp=2))
BLOCKS, RUNS, STEPS = 20, 10, 32


def clean_job(seed: int) -> Job:
    draw = random.Random(seed)
    noise = NoiseModel(
        step=draw.uniform(0.03, 0.12),
        slow=draw.uniform(0.0, 0.04),
        offset=draw.uniform(0.0, 0.03),
        outliers=draw.uniform(0.0, 0.03),
        common=draw.uniform(0.0, 0.2),
        wall=draw.uniform(0.01, 0.3),
    )
    layout = LAYOUTS[seed % len(LAYOUTS)]
    return Job(layout, noise, seed=seed, on_cpu=True, last_stage=draw.choice([1.0, 1.4]))


@pytest.mark.parametrize("block", seeds(BLOCKS, at_once=1))
def test_clean_runs_on_noisy_cpus_page_nobody(block: int) -> None:
    for seed in range(block * RUNS, (block + 1) * RUNS):
        assert detect(clean_job(seed), STEPS).paged() == [], f"seed {seed}"


def test_a_long_clean_run_on_gpus_pages_nobody() -> None:
    assert detect(Job(Layout(pp=2, dp=4), GPU, seed=20), 150).paged() == []
