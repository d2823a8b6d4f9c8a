"""Steps in buckets: which bucket, and what of its steps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector.grid import COLUMNS, MAX_CELLS, StepGrid, choose_bucket
from megatronapp.core.errors import DataError
from megatronapp.v1 import trace_pb2

MS = 1_000_000


def table(*rows: tuple[int, int, int], traced: int = 0) -> pa.Table:
    """Of (step, rank, duration in ms), half of it compute; steps begin 100 ms apart, ranks 1 ms."""
    step, rank, duration = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    columns = dict.fromkeys(COLUMNS, np.zeros(len(rows), np.int64)) | {
        "step": step.astype(np.uint64),
        "rank": rank.astype(np.uint32),
        "start_ns": (step * 100 + rank) * MS,
        "clock_offset_ns": np.full(len(rows), 7 * MS),
        "duration_ns": duration * MS,
        "compute_ns": duration * MS // 2,
        "traced": np.full(len(rows), traced, np.uint8),
    }
    return pa.table(columns)


def cells(answer: trace_pb2.ListStepGridResponse, name: str) -> list[float]:
    return [round(float(value), 6) for value in np.frombuffer(getattr(answer, f"{name}_seconds"), "<f4")]


def test_a_bucket_tells_mean_least_and_greatest_of_its_steps() -> None:
    grid = StepGrid(4, 7, 4, np.array([0, 3], np.uint32))
    grid.fold(table((4, 0, 20), (5, 0, 40)))
    grid.fold(table((6, 0, 90), (7, 3, 10), traced=1))

    answer = grid.response(1, 9)

    assert cells(answer, "duration") == [0.05, 0.01]
    assert cells(answer, "shortest") == [0.02, 0.01]
    assert cells(answer, "longest") == [0.09, 0.01]
    assert cells(answer, "compute") == [0.025, 0.005]
    assert cells(answer, "most_compute") == [0.045, 0.005]
    assert cells(answer, "offset") == [0.0, 0.303]
    assert np.frombuffer(answer.start_ns, "<i8").tolist() == [407 * MS]
    assert np.frombuffer(answer.end_ns, "<i8").tolist() == [720 * MS]
    assert (answer.traced, answer.oldest_step, answer.newest_step) == (b"\x01", 1, 9)


def test_what_nobody_told_is_nan_and_other_ranks_and_steps_are_passed_over() -> None:
    grid = StepGrid(2, 5, 2, np.array([1], np.uint32))
    grid.fold(table((1, 1, 50), (4, 1, 30), (4, 0, 70), (6, 1, 50)))

    answer = grid.response(1, 6)

    assert cells(answer, "duration") == pytest.approx([np.nan, 0.03], nan_ok=True)
    assert np.frombuffer(answer.start_ns, "<i8").tolist() == [0, 408 * MS]


def test_buckets_are_aligned_whatever_was_asked_for() -> None:
    whole, newest = (StepGrid(first, 63, 8, np.array([0], np.uint32)) for first in (0, 43))
    rows = [(step, 0, step) for step in range(64)]
    for grid in (whole, newest):
        grid.fold(table(*rows))

    assert newest.first == 40
    assert cells(newest.response(0, 63), "duration")[1:] == cells(whole.response(0, 63), "duration")[6:]


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 4096), st.integers(1, 2000))
def test_the_smallest_bucket_is_chosen_with_which_they_are_few_enough(
    first: int, more: int, ranks: int, most: int
) -> None:
    bucket = choose_bucket(first, first + more, ranks, most)
    limit = min(most, MAX_CELLS // ranks)

    def count(steps: int) -> int:
        return (first + more) // steps - first // steps + 1

    assert bucket & (bucket - 1) == 0
    assert count(bucket) <= limit or limit == 1
    assert bucket == 1 or count(bucket // 2) > limit


def test_more_ranks_than_an_answer_has_cells_are_refused() -> None:
    with pytest.raises(DataError, match="at most"):
        choose_bucket(0, 1, MAX_CELLS + 1, 1)
