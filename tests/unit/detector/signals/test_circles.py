"""Circles in who waits for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.detector.signals.circles import circles, in_all_circles, reached


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_circles_are_the_ranks_that_reach_each_other(pairs: list[tuple[int, int]]) -> None:
    ahead: dict[int, set[int]] = {}
    for waiter, other in pairs:
        ahead.setdefault(waiter, set()).add(other)
    whole = {rank: reached(rank, ahead) for rank in range(10)}

    expected = {
        frozenset(other for other in whole[rank] if rank in whole[other]) for rank in range(10) if rank in whole[rank]
    }

    assert {frozenset(circle) for circle in circles(ahead)} == expected


@pytest.mark.parametrize(
    ("ahead", "ranks"),
    [
        pytest.param({0: {2}, 1: {2}, 2: {0, 1}}, {2}, id="all others wait for it"),
        pytest.param({0: {1}, 1: {2}, 2: {0, 3}, 3: {2}}, {2}, id="a long circle and a short one"),
        pytest.param({0: {1}, 1: {2, 0}, 2: {0}}, {0, 1}, id="a short way and a long one"),
        pytest.param({0: {1}, 1: {0}}, {0, 1}, id="either of two"),
        pytest.param({0: {1}, 1: {2}, 2: {0}}, {0, 1, 2}, id="any of one circle"),
        pytest.param({0: {1}, 1: {0}, 2: {3}, 3: {2}}, set(), id="circles apart"),
        pytest.param({0: {2, 3}, 1: {2, 3}, 2: {0, 1}, 3: {0, 1}}, set(), id="two against two"),
        pytest.param({0: {1}, 1: set()}, set(), id="no circle"),
    ],
)
def test_who_is_in_all_circles_is_told(ahead: dict[int, set[int]], ranks: set[int]) -> None:
    assert in_all_circles(ahead) == ranks
