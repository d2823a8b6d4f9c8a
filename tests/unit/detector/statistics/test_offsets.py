"""By how much healthy items may differ for good."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from megatronapp.detector.statistics import offsets

SPREAD, PRIOR, JOBS = 0.004, 0.05, 2000
FIRST_STEPS, SHARE = max(offsets.LOOKS), 0.1


@pytest.mark.parametrize(
    ("items", "one_in"),
    [(8, offsets.FEW_SPREADS), (16, offsets.FEW_SPREADS), (64, offsets.SPREADS), (1024, offsets.SPREADS)],
)
def test_few_jobs_have_a_healthy_item_beyond_the_allowance(items: int, one_in: int) -> None:
    random, jobs = np.random.default_rng(items), 20 * one_in

    beyond = sum(bool(np.any(own > offsets.allowance(own, PRIOR))) for own in random.normal(0, SPREAD, (jobs, items)))

    assert 0.3 / one_in < beyond / jobs < 3 / one_in


@pytest.mark.parametrize("items", [8, 16, 64])
def test_an_item_that_differs_is_no_measure_of_itself(items: int) -> None:
    own = np.random.default_rng(1).normal(0, SPREAD, items)
    own[3] = 10 * SPREAD

    assert own[3] > offsets.allowance(own, PRIOR)[3]


def test_many_devices_that_differ_much_are_allowed_more_than_the_prior_and_few_are_not() -> None:
    random = np.random.default_rng(4)

    assert np.all(offsets.allowance(random.normal(0, 0.02, 512), PRIOR) > 0.07)
    assert np.all(offsets.allowance(random.normal(0, 0.02, 8), PRIOR) <= PRIOR)


@pytest.mark.parametrize("items", [1, 2, 3, 4])
def test_up_to_four_items_show_too_little(items: int) -> None:
    assert np.all(offsets.allowance(np.zeros(items), PRIOR) == PRIOR)


def test_a_scale_is_known_after_a_few_steps_of_many_items_and_hardly_after_those_of_two() -> None:
    random = np.random.default_rng(2)

    many = offsets.early_scale(random.normal(0, 0.005, (512, 4)), prior=0.01)
    two = offsets.early_scale(random.normal(0, 0.005, (2, 4)), prior=0.01)

    assert many == pytest.approx(0.005, rel=0.1)
    assert 0.008 < two < 0.0125


def test_what_steps_vary_by_is_not_taken_for_how_devices_differ() -> None:
    random, steps = np.random.default_rng(5), 16
    values = random.normal(0, SPREAD, (4096, 1)) + random.normal(0, SPREAD, (4096, steps))
    medians, even = np.median(values, axis=1), offsets.allowance(random.normal(0, SPREAD, 4096), PRIOR)[0]

    allowed = offsets.allowance(medians, PRIOR, offsets.uncertainty(values))[0]

    assert allowed == pytest.approx(even, rel=0.03)
    assert offsets.allowance(medians, PRIOR)[0] > 1.04 * even


def test_what_wanders_from_step_to_step_is_allowed_as_what_lasts() -> None:
    random, memory = np.random.default_rng(6), 0.95
    values = np.empty((4096, 16))
    values[:, 0] = random.normal(0, SPREAD, 4096)
    for step in range(1, 16):
        fresh = random.normal(0, SPREAD * np.sqrt(1 - memory**2), 4096)
        values[:, step] = memory * values[:, step - 1] + fresh
    medians = np.median(values, axis=1)

    allowed = offsets.allowance(medians, PRIOR, offsets.uncertainty(values))[0]

    assert allowed == pytest.approx(offsets.allowance(medians, PRIOR)[0], rel=0.03)


@pytest.mark.parametrize("items", [64, 512])
def test_of_new_items_as_even_as_they_should_be_one_is_extraordinary_in_one_of_many_jobs(items: int) -> None:
    random = np.random.default_rng(items)

    beyond = sum(
        bool(offsets.extraordinary(_steps(random, own), SHARE).any()) for own in random.normal(0, SPREAD, (JOBS, items))
    )

    assert beyond / JOBS < 4 * SHARE / offsets.SPREADS


def test_of_all_looks_at_the_first_steps_of_a_job_one_in_many_finds_somebody() -> None:
    """Jobs of whose devices none differs: the median of seven steps is far off where four of them happen to be."""
    random, found = np.random.default_rng(1), 0
    for _ in range(JOBS):
        values = random.normal(0, SPREAD, (256, FIRST_STEPS))
        looks = ((values[:, -steps:], share) for steps, share in offsets.LOOKS.items())
        found += any(offsets.extraordinary(*look).any() for look in looks)

    assert found / JOBS <= 2 / offsets.SPREADS


def test_a_new_item_far_from_many_others_is_extraordinary_and_of_few_nobody_is() -> None:
    random = np.random.default_rng(0)
    own = random.normal(0, SPREAD, 64)
    own[3] = 8 * SPREAD
    values = _steps(random, own)

    assert np.flatnonzero(offsets.extraordinary(values, SHARE)).tolist() == [3]
    assert not offsets.extraordinary(values[:16], SHARE).any()


def test_late_looks_tell_what_early_ones_leave_open() -> None:
    """Of 4,096 even items one that lies 5.45 standard deviations off."""
    even = np.array([NormalDist(0, SPREAD).inv_cdf((item + 0.5) / 4096) for item in range(4096)])
    even[3] = 5.45 * SPREAD
    first, *_, last = (
        offsets.extraordinary(np.repeat(even[:, None], steps, axis=1), share) for steps, share in offsets.LOOKS.items()
    )

    assert not first.any()
    assert np.flatnonzero(last).tolist() == [3]


@pytest.mark.parametrize(("steps", "since"), [(5, 2), (8, 3), (20, 8)])
def test_a_new_item_whose_newest_steps_are_as_others_is_not(steps: int, since: int) -> None:
    """As after a burst, which ended so many steps ago, and of which the median still tells."""
    random = np.random.default_rng(0)
    values = _steps(random, random.normal(0, SPREAD, 256), steps)
    values[3, since:] += 10 * SPREAD

    assert np.median(values[3]) > 9 * SPREAD
    assert not offsets.extraordinary(values, SHARE).any()


def test_a_new_item_is_not_where_single_steps_of_all_reach_as_far() -> None:
    """Of 13 steps half reach what one in 25 of the others' does: with skewed work one of a thousand ranks does that now
    and then, though by the medians' scatter it lies far off."""
    random = np.random.default_rng(4)
    values = np.log(0.7 + 0.3 * np.exp(random.normal(0, 0.43, (1024, 13)))) - 0.02
    values[3] = [0.29, 0.26, 0.19, 0.39, 0.27, 0.18, 0.09, 0.35, -0.04, 0.87, -0.1, 0.4, 0.1]
    constant = values.copy()
    constant[3] = 0.4

    assert not offsets.extraordinary(values, SHARE).any()
    assert np.flatnonzero(offsets.extraordinary(constant, SHARE)).tolist() == [3]


def test_where_groups_of_items_have_more_work_than_others_no_new_one_is_extraordinary() -> None:
    random = np.random.default_rng(0)
    of_replicas = random.lognormal(0, 0.4, 128) - 1

    assert not offsets.extraordinary(_steps(random, 0.1 * np.repeat(of_replicas, 8)), SHARE).any()


def _steps(random: np.random.Generator, own: np.ndarray, steps: int = 8) -> np.ndarray:
    """(items × steps) of items that differ so for good."""
    values: np.ndarray = own[:, None] + random.normal(0, SPREAD / 4, (len(own), steps))
    return values
