"""Telling heavy microbatches from slow devices."""

import numpy as np
import pytest

from megatronapp.detector.signals.microbatches import expected_share
from megatronapp.detector.steps import Microbatches

REPLICAS, EACH = 8, 6


def microbatches(stages, spread, *, seed=0, noise=0.002):
    """Stage s takes s + 1 seconds for equal work, and a constant part of its own."""
    generator = np.random.default_rng(seed)
    work = np.exp(generator.normal(0, spread, REPLICAS * EACH))
    compute = np.stack([(s + 1) * (work + 0.5 * s) for s in range(stages)])
    compute *= np.exp(generator.normal(0, noise, compute.shape))
    return Microbatches(np.repeat(np.arange(REPLICAS), EACH), compute)


def unexplained(detail):
    share = detail.compute / np.median(detail.compute, axis=1, keepdims=True)
    return np.log(share) - np.log(expected_share(detail))


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.4])
def test_heavy_microbatches_are_explained_by_the_other_stages(stages, spread):
    assert np.abs(unexplained(microbatches(stages, spread))).max() < 0.03


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_a_slow_worker_is_not_explained_away(stages, spread):
    detail = microbatches(stages, spread)
    detail.compute[1, detail.replica == 3] *= 1.2

    left = unexplained(detail)

    assert np.median(left[1, detail.replica == 3]) == pytest.approx(np.log(1.2), abs=0.02)
    assert abs(np.median(left[1, detail.replica != 3])) < 0.01


def test_one_disturbed_microbatch_does_not_bend_the_fit():
    detail = microbatches(2, 0.4)
    detail.compute[0, 5] *= 10

    assert np.median(np.abs(unexplained(detail))) < 0.01


def test_one_stage_alone_is_judged_only_when_microbatches_are_alike():
    assert np.isnan(expected_share(microbatches(1, 0.4))).all()
    assert (expected_share(microbatches(1, 0.0)) == 1).all()


def test_what_was_not_recorded_stays_unknown():
    detail = microbatches(2, 0.4)
    detail.compute[0, 3] = np.nan

    expected = expected_share(detail)

    assert np.isnan(expected[1, 3])
    assert np.isfinite(expected[1, 4])
