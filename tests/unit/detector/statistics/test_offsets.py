"""By how much healthy items may differ for good."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.statistics import offsets

SPREAD, PRIOR, JOBS = 0.004, 0.05, 2000


@pytest.mark.parametrize("items", [8, 16, 64, 1024])
def test_about_one_job_in_a_hundred_has_a_healthy_item_beyond_the_allowance(items: int) -> None:
    random = np.random.default_rng(items)

    beyond = sum(bool(np.any(own > offsets.allowance(own, PRIOR))) for own in random.normal(0, SPREAD, (JOBS, items)))

    assert 0.3 / offsets.SPREADS < beyond / JOBS < 3 / offsets.SPREADS


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

    beyond = sum(bool(offsets.extraordinary(own).any()) for own in random.normal(0, SPREAD, (JOBS, items)))

    assert beyond / JOBS < 8 / offsets.NEW_JOBS


def test_a_new_item_far_from_many_others_is_extraordinary_and_of_few_nobody_is() -> None:
    own = np.random.default_rng(0).normal(0, SPREAD, 64)
    own[3] = 8 * SPREAD

    assert np.flatnonzero(offsets.extraordinary(own)).tolist() == [3]
    assert not offsets.extraordinary(own[:16]).any()


def test_where_groups_of_items_have_more_work_than_others_no_new_one_is_extraordinary() -> None:
    of_replicas = np.random.default_rng(0).lognormal(0, 0.4, 128) - 1

    assert not offsets.extraordinary(0.1 * np.repeat(of_replicas, 8)).any()
