"""A drawn part of the tests has some of every module, and is the same wherever it is drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.share import drawn

ITEMS = [(module, number) for module in "abc" for number in range(10)]


@given(share=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
def test_every_module_is_in_it_with_about_its_share_and_in_order(share: float, seed: int) -> None:
    part = drawn(ITEMS, share, seed, group=lambda item: item[0])

    assert part == sorted(set(part))
    for module in "abc":
        assert sum(name == module for name, _ in part) == max(1, round(share * 10))


def test_the_same_seed_draws_the_same_and_another_one_another_part() -> None:
    parts = [drawn(ITEMS, 0.3, seed, group=lambda item: item[0]) for seed in (1, 1, 2)]

    assert parts[0] == parts[1] != parts[2]


def test_all_is_all() -> None:
    assert drawn(ITEMS, 1.0, 5, group=lambda item: item[0]) == ITEMS
