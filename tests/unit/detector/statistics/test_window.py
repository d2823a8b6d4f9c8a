"""The newest values of many items, against lists that do the same slowly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.detector.statistics.window import Window

WIDTH = 4
Pushed = list[tuple[int, ...]]


@given(st.lists(st.sets(st.integers(0, 2)).map(lambda items: tuple(sorted(items))), max_size=40))
def test_every_item_keeps_its_newest_values(pushed: Pushed) -> None:
    window, expected = Window(WIDTH, -1.0), [[-1.0] * WIDTH for _ in range(3)]
    window.grow(3)

    for value, items in enumerate(pushed):
        window.push_some(np.array(items, np.int64), np.full(len(items), float(value)))
        for item in items:
            expected[item] = [float(value), *expected[item][:-1]]

    assert window.rows.tolist() == expected


def test_later_items_begin_empty() -> None:
    window = Window(WIDTH, 0.0)
    window.grow(1)
    window.push(np.array([1.0]))

    window.grow(1)
    window.push(np.array([2.0, 3.0]))

    assert window.rows.tolist() == [[2.0, 1.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]]


def test_rows_can_be_written() -> None:
    window = Window(WIDTH, 0.0)
    window.grow(1)
    window.push(np.array([1.0]))

    window.rows[:] = 7.0
    window.push(np.array([8.0]))

    assert window.rows.tolist() == [[8.0, 7.0, 7.0, 7.0]]


def test_a_window_takes_a_quarter_more_than_its_values() -> None:
    window = Window(256, 0.0)

    window.grow(10)

    assert window._memory.nbytes <= 1.25 * window.rows.nbytes
