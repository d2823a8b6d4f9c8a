"""Selections of layers, heads, tokens and steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.trainer.plugins.scope.perturb.ranges import Ranges


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", set(range(12))),
        ("3", {3}),
        ("0,3,7", {0, 3, 7}),
        ("2:5", {2, 3, 4}),
        ("8:", {8, 9, 10, 11}),
        (":2,10", {0, 1, 10}),
        ("1::4", {1, 5, 9}),
        ("*", set(range(12))),
    ],
)
def test_what_is_chosen(text: str, chosen: set[int]) -> None:
    ranges = Ranges.parse(text)

    assert {number for number in range(12) if number in ranges} == chosen


@pytest.mark.parametrize("text", ["-1", "-3:", ":-1", "a", "1:2:0", "0:1;2", "1.5", "].x | y", "9" * 20])
def test_what_is_no_selection_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        Ranges.parse(text)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_mask_holds_what_the_ranges_contain(parts: list[tuple[int, int, int]]) -> None:
    ranges = Ranges.parse(",".join(f"{start}:{stop}:{step}" for start, stop, step in parts))

    mask = ranges.mask(torch.arange(16))

    assert mask is not None
    assert mask.tolist() == [number in ranges for number in range(16)]


def test_numbers_keep_their_order() -> None:
    assert Ranges.parse("5,1,2:4").numbers() == (5, 1, 2, 3)
