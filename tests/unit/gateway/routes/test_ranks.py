"""Ranks as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.gateway.routes.ranks import MAX_RANKS, parse_ranks


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50))))
def test_ranges_and_single_ranks_are_united(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low}-{low + width}" if width else str(low) for low, width in ranges)

    expected = {rank for low, width in ranges for rank in range(low, low + width + 1)}
    assert parse_ranks(text) == sorted(expected)


@pytest.mark.parametrize("text", ["5-2", f"0-{MAX_WORLD}", str(MAX_WORLD), "9999999999"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no range of ranks"):
        parse_ranks(text)


@pytest.mark.parametrize("text", ["0-1048575", ",".join(["0-1048575"] * 400), "0-4095,5000", "0-3000,2000-4096"])
def test_more_ranks_than_a_viewer_opens_are_refused_with_the_bound(text: str) -> None:
    with pytest.raises(UsageError, match=f"more than {MAX_RANKS}"):
        parse_ranks(text)


def test_the_same_ranks_again_and_again_are_read_once() -> None:
    text = ",".join([f"0-{MAX_RANKS - 1}"] * 500)

    assert parse_ranks(text) == list(range(MAX_RANKS))
