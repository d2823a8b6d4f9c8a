"""Steps over a run: joined from parts, and thinned without losing an extreme."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector import history
from megatronapp.v1 import trace_pb2

SECOND_NS = 10**9


def rows(loss: list[float], *, start_ns: list[int] | None = None, first_step: int = 1) -> history.Columns:
    count = len(loss)
    empty = history.read([])
    columns = {name: np.zeros(count, column.dtype) for name, column in empty.items()}
    return columns | {
        "step": np.arange(first_step, first_step + count, dtype=np.uint64),
        "start_ns": np.array(start_ns or [SECOND_NS * index for index in range(count)], np.int64),
        "duration_ns": np.full(count, SECOND_NS, np.int64),
        "duration_sum_seconds": np.full(count, 2.0),
        "p2p_sum_seconds": np.full(count, 0.5),
        "ranks": np.full(count, 2, np.uint32),
        "reported": np.ones(count, np.uint8),
        "loss": np.array(loss),
    }


def series(answer: trace_pb2.AttemptHistory, name: str, field: str) -> np.ndarray:
    (found,) = [one for one in answer.series if one.name == name]
    return np.frombuffer(getattr(found, field), "<u4" if field == "non_finite" else "<f8")


def bins(columns: history.Columns, count: int, *, by_time: bool = False) -> trace_pb2.AttemptHistory:
    return history.attempt_bins(columns, count, by_time=by_time, pipeline=True)


losses = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


@given(losses, st.integers(2, 50), st.booleans())
def test_bins_lose_no_extreme_no_end_and_no_step(loss: list[float], count: int, by_time: bool) -> None:
    answer = bins(rows(loss), count, by_time=by_time)

    first, last = (np.frombuffer(data, "<u8") for data in (answer.bin_first_step, answer.bin_last_step))
    steps = np.frombuffer(answer.bin_steps, "<u4")
    means = series(answer, "loss", "mean")
    assert answer.count <= max(count, 3)
    assert (series(answer, "loss", "min").min(), series(answer, "loss", "max").max()) == (min(loss), max(loss))
    assert (means[0], means[-1]) == (loss[0], loss[-1])
    assert (first[0], last[-1], int(steps.sum())) == (1, len(loss), len(loss))
    assert (first[1:] == last[:-1] + 1).all()
    assert np.frombuffer(answer.duration_ns, "<f8").sum() == len(loss) * SECOND_NS


@given(losses, st.integers(0, 200), st.randoms())
def test_parts_are_joined_in_any_order(loss: list[float], cut: int, chance: object) -> None:
    """Two ranks, whose reports come in two writes."""
    whole = history.joined({name: np.concatenate([column, column]) for name, column in rows(loss).items()})
    cut = min(cut, len(loss))
    parts = [{n: c[:cut] for n, c in rows(loss).items()}, {n: c[cut:] for n, c in rows(loss).items()}, rows(loss)]
    chance.shuffle(parts)  # type: ignore[attr-defined]

    read = history.read([history.table(history.joined(part)) for part in parts])

    assert all(np.array_equal(read[name], whole[name], equal_nan=True) for name in whole)


def test_by_time_a_pause_is_no_place_for_bins() -> None:
    """Ten steps, an hour of nothing, ten steps: by time the steps after the pause share the last bins."""
    starts = [SECOND_NS * index for index in range(10)] + [3600 * SECOND_NS + SECOND_NS * index for index in range(10)]

    answer = bins(rows([1.0] * 20, start_ns=starts), 8, by_time=True)

    assert np.frombuffer(answer.bin_last_step, "<u8").tolist() == [1, 10, 19, 20]


def test_a_clock_that_is_set_back_disorders_no_bins() -> None:
    answer = bins(rows([1.0] * 20, start_ns=[*range(100, 110), *range(10)]), 6, by_time=True)

    first = np.frombuffer(answer.bin_first_step, "<u8")
    assert (np.diff(first.astype(np.int64)) > 0).all()


def test_what_is_no_number_is_counted_and_what_nobody_told_is_not() -> None:
    columns = rows([1.0, float("nan"), float("inf"), float("nan"), 2.0])
    columns["reported"] = np.array([1, 1, 1, 0, 1], np.uint8)

    answer = bins(columns, 10)

    assert series(answer, "loss", "non_finite").tolist() == [0, 1, 1, 0, 0]
    assert np.isnan(series(answer, "loss", "mean")).tolist() == [False, True, True, True, False]


def test_the_bubble_is_the_share_that_ranks_wait_for_other_stages() -> None:
    answer = bins(rows([1.0, 1.0]), 10)

    assert series(answer, "bubble_ratio", "mean").tolist() == [0.25, 0.25]
    assert np.frombuffer(answer.stage_wait_ns, "<f8").tolist() == pytest.approx([0.25 * SECOND_NS] * 2)


def test_without_stages_there_is_no_bubble() -> None:
    answer = history.attempt_bins(rows([1.0, 1.0]), 10, by_time=False, pipeline=False)

    assert np.isnan(series(answer, "bubble_ratio", "mean")).all()
    assert np.frombuffer(answer.stage_wait_ns, "<f8").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (history.Range(from_step=2, to_step=3), [2, 3]),
        (history.Range(from_step=4), [4, 5]),
        (history.Range(from_unix_ns=SECOND_NS, to_unix_ns=2 * SECOND_NS), [2, 3]),
        (history.Range(from_step=9), []),
    ],
)
def test_a_range_is_cut_before_anything_is_thinned(asked: history.Range, steps: list[int]) -> None:
    assert asked.of(rows([1.0] * 5))["step"].tolist() == steps


def test_attempts_share_the_bins_by_their_steps() -> None:
    assert history.share(100, [300, 100, 0]) == [75, 25, 3]
