"""What the reservation promises of a stage's memory, whatever it chooses and however small its cap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import caps
from megatronapp.core.pipeline.admission import admits
from megatronapp.core.pipeline.lanes import IN_FLIGHT, WHOLE
from megatronapp.core.pipeline.placement import Layout


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80))
def test_earlier_chunks_always_leave_room_for_each_later_one(
    chunks: int, spare: int, tries: list[tuple[int, bool]]
) -> None:
    cap = chunks + spare
    in_flight = [0] * chunks
    for number, ends in tries:
        chunk = number % chunks
        held = [0, 0]
        held[IN_FLIGHT] = sum(in_flight) * WHOLE
        if ends:
            in_flight[chunk] -= in_flight[chunk] > 0
        elif admits(held, cap, chunks, chunk, reserve=True):
            in_flight[chunk] += 1

        assert all(sum(in_flight[: k + 1]) <= cap - (chunks - 1 - k) for k in range(chunks))


@given(st.integers(2, 6))
def test_the_last_chunk_is_admitted_while_only_earlier_ones_hold_memory(chunks: int) -> None:
    held = [0, 0]
    held[IN_FLIGHT] = (chunks - 1) * WHOLE  # the most that they may hold under the smallest cap

    assert admits(held, chunks, chunks, chunks - 1, reserve=True)
    assert not admits(held, chunks, chunks, chunks - 2, reserve=True)


@given(st.integers(1, 6), st.integers(-5, 12))
def test_a_cap_below_the_chunks_is_refused_with_the_least_one(chunks: int, cap: int) -> None:
    layout = Layout(stages=2, chunks=chunks, microbatches=4)
    if cap >= chunks:
        assert caps.checked_cap(layout, cap) == cap
    else:
        with pytest.raises(UsageError, match=f"must be at least {chunks}"):
            caps.checked_cap(layout, cap)
