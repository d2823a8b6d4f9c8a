"""Against tables that anybody can look up."""

import numpy as np
import pytest

from bench.scale import intervals


@pytest.mark.parametrize(
    ("events", "low", "high"), [(0, 0.0, 3.689), (1, 0.025, 5.572), (10, 4.795, 18.390), (100, 81.364, 121.627)]
)
def test_a_count_has_garwoods_interval(events: int, low: float, high: float) -> None:
    assert intervals.poisson(events) == pytest.approx((low, high), abs=2e-3)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (95, 100, 0.8872, 0.9836)],
)
def test_a_share_has_clopper_and_pearsons_interval(hits: int, trials: int, low: float, high: float) -> None:
    assert intervals.share(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_nothing_tried_says_nothing() -> None:
    assert intervals.share(0, 0) == (0.0, 1.0)


def test_a_median_of_few_values_lies_anywhere_among_them() -> None:
    assert intervals.median([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_median_of_many_values_lies_between_its_order_statistics() -> None:
    """Of 100 values: the 40th and the 61st."""
    assert intervals.median(list(range(1, 101))) == (40, 61)


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    drawn = [intervals.median(random.exponential(1, 25).tolist()) for _ in range(1000)]

    held = np.mean([low <= np.log(2) <= high for low, high in drawn])

    assert 0.93 <= held <= 0.99


def test_a_share_and_a_median_are_told_with_their_intervals() -> None:
    assert intervals.share_text(5, 10) == "5 of 10 (0.19 … 0.81)"
    assert intervals.median_text([3.0, 1.0, 2.0]) == "2.0 (1.0 … 3.0)"
    assert (intervals.share_text(0, 0), intervals.median_text([])) == ("–", "–")
