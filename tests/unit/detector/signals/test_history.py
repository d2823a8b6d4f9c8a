"""A rank against its own first steps, operation by operation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from megatronapp.core.findings import Kind
from megatronapp.detector.signals.compute import Passes
from megatronapp.detector.signals.history import ANCHOR_STEPS, PassHistory
from tests.support.detecting import detect
from tests.support.simulated import HOST_BOUND, Fault, Job, Layout

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


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_has_always_been_quicker_than_its_only_peer_is_not_late_once_that_ones_device_is_slow(
    seed: int,
) -> None:
    """Nobody is left to compare it with then, and it goes on as before."""
    quicker, slow = Fault("launching", (0,), 1, 0.75), Fault("compute", (1,), 60, 2.5)
    noise = dataclasses.replace(HOST_BOUND, launching=1.5, launching_slow=0.02)

    found = detect(Job(Layout(pp=1, dp=2), noise, (quicker, slow), seed=seed), 160)

    assert {(finding.kind, finding.ranks) for _, finding in found.opened().values()} == {(Kind.SLOW_GPU, (1,))}


def test_a_host_that_becomes_late_when_its_only_peer_is_gone_is_found() -> None:
    quicker, slow = Fault("launching", (0,), 1, 0.75), Fault("compute", (1,), 60, 2.5)
    late = Fault("launching", (0,), 90, 3.0)
    noise = dataclasses.replace(HOST_BOUND, launching=1.5, launching_slow=0.02)

    found = detect(Job(Layout(pp=1, dp=2), noise, (quicker, slow, late), seed=1), 190)

    assert {(finding.kind, finding.ranks) for finding in found.paged()} == {
        (Kind.SLOW_GPU, (1,)),
        (Kind.SLOW_HOST, (0,)),
    }
