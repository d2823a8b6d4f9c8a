"""A rank against its own first steps, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.signals.compute import Passes
from megatronapp.detector.signals.history import ANCHOR_STEPS, PassHistory

RANKS = np.array([0])
HEALTHY = np.array([True])
FORWARD, BACKWARD = ("forward", 0), ("backward", 0)


def passes(forward: float, backward: float) -> Passes:
    return Passes((FORWARD, BACKWARD), np.array([[forward, backward]]))


def after_clean_steps(forward: float, backward: float) -> PassHistory:
    history = PassHistory()
    for _ in range(ANCHOR_STEPS):
        history.since_start(RANKS, passes(forward, backward), HEALTHY)
    return history


def test_nothing_is_known_before_the_first_steps_are_over() -> None:
    history = PassHistory()

    for _ in range(ANCHOR_STEPS - 1):
        assert np.isnan(history.since_start(RANKS, passes(1.0, 2.0), HEALTHY))


def test_a_slower_operation_weighs_by_its_time() -> None:
    history = after_clean_steps(1.0, 2.0)

    found = history.since_start(RANKS, passes(1.0, 4.0), HEALTHY)

    assert found == pytest.approx(np.log(5 / 3))


def test_an_operation_that_was_never_known_does_not_hide_the_other() -> None:
    history = after_clean_steps(np.nan, 2.0)

    found = history.since_start(RANKS, passes(3.0, 4.0), HEALTHY)

    assert found == pytest.approx(np.log(2))


def test_what_is_first_seen_of_a_slow_rank_is_not_its_measure() -> None:
    history = after_clean_steps(np.nan, 2.0)
    slow = np.array([False])

    for _ in range(2 * ANCHOR_STEPS):
        found = history.since_start(RANKS, passes(3.0, 4.0), slow)

    assert found == pytest.approx(np.log(2))
