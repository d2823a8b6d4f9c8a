"""Alignment against simulated clocks whose truth is known."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.collector.align import MIN_HELD_OUT, Alignment, Anchors
from tests.unit.collector.clock_simulation import ALL_REDUCE, SECOND, Simulation


def test_offsets_and_drifts_are_found() -> None:
    simulation = Simulation(noise_ns=2_000)
    alignment = Alignment()

    simulation.run(alignment, 1, 30)

    raw = float(np.ptp(simulation.deviation(30 * SECOND)))
    assert alignment.fitted
    assert raw > 200_000
    assert simulation.error(alignment, 30 * SECOND) < 5_000


def test_corrections_stay_while_few_anchors_tell_which_class_agrees_best() -> None:
    """Of two clocks, with one collective of each class and group a step, as in a pipeline of two replicas."""
    simulation = Simulation(2, noise_ns=2_000)
    alignment = Alignment()
    alignment.grow(simulation.clocks)
    errors = []

    for number in range(1, 60):
        step = simulation.step(number)
        few = step.sequence == number * 100 + 1
        alignment.observe(Anchors(*(column[few] for column in astuple(step))))
        errors.append(simulation.error(alignment, number * SECOND))

    assert errors[0] > 50_000
    assert max(errors[12:]) < 10_000


def test_a_fifth_of_the_ends_may_be_missing() -> None:
    simulation = Simulation(noise_ns=2_000, lost_ratio=0.2)
    alignment = Alignment()

    simulation.run(alignment, 1, 30)

    assert simulation.error(alignment, 30 * SECOND) < 5_000


def test_a_fit_that_does_not_beat_the_raw_clocks_is_not_used() -> None:
    """Ends of the fitted class are not simultaneous, those of the class that is held out are."""

    def late(kind: int, clocks: np.ndarray) -> np.ndarray:
        return np.where(kind == ALL_REDUCE, clocks % 2 * 900_000.0, 0.0)

    simulation = Simulation(offset_ns=1_000, drift=1e-8, asymmetry=late)
    alignment = Alignment()

    simulation.run(alignment, 1, 20)

    residuals = alignment.residuals()
    assert residuals is not None
    assert residuals.median_ns > residuals.raw_median_ns
    assert not alignment.fitted
    assert [alignment.correction(clock, 20 * SECOND) for clock in range(simulation.clocks)] == [0.0] * 8
    assert alignment.error_ns(0, 20 * SECOND) == round(residuals.raw_p90_ns)


def test_a_clock_that_steps_is_followed_within_a_few_steps() -> None:
    simulation = Simulation(noise_ns=2_000)
    alignment = Alignment()
    simulation.run(alignment, 1, 20)

    simulation.offsets[2] += 1_000_000
    simulation.run(alignment, 20, 26)

    assert simulation.error(alignment, 26 * SECOND) < 5_000


def test_the_published_uncertainty_covers_the_true_error() -> None:
    simulation = Simulation(noise_ns=3_000)
    alignment = Alignment()

    simulation.run(alignment, 1, 30)

    # Shown by clocks that are compared in pairs: each member's error is at most that of their difference.
    assert simulation.error(alignment, 30 * SECOND) <= 2 * alignment.error_ns(0, 30 * SECOND)


def test_uncertainty_grows_while_no_anchor_comes() -> None:
    simulation = Simulation()
    alignment = Alignment()
    simulation.run(alignment, 1, 20)

    assert alignment.error_ns(0, 2_000 * SECOND) > alignment.error_ns(0, 20 * SECOND)


def test_nothing_is_claimed_without_anchors() -> None:
    alignment = Alignment()
    alignment.grow(2)

    assert alignment.error_ns(0, SECOND) == -1
    assert alignment.correction(0, SECOND) == 0.0
    assert alignment.residuals() is None


def test_collectives_within_one_clock_tell_nothing() -> None:
    alignment = Alignment()
    alignment.grow(2)
    rows = np.arange(40)
    within = Anchors(rows // 2, rows * 0, rows // 2 + 1, rows // 20, rows * 1_000)

    alignment.observe(within)

    assert alignment.anchors == 0


def test_every_fourth_is_held_out_where_there_is_one_kind_alone() -> None:
    simulation = Simulation(noise_ns=1_000)
    alignment = Alignment()
    alignment.grow(simulation.clocks)
    for number in range(1, 20):
        step = simulation.step(number)
        mask = step.kind == ALL_REDUCE
        only = Anchors(step.group[mask], step.kind[mask], step.sequence[mask], step.clock[mask], step.end_ns[mask])
        alignment.observe(only)

    residuals = alignment.residuals()
    assert residuals is not None
    assert residuals.count >= MIN_HELD_OUT
    assert alignment.fitted
    assert simulation.error(alignment, 20 * SECOND) < 5_000


@settings(max_examples=25, deadline=None)
@given(
    clocks=st.sampled_from([2, 4, 8]),
    offset=st.sampled_from([0.0, 1e3, 1e5, 1e7]),
    drift=st.sampled_from([0.0, 1e-6, 1e-5]),
    noise=st.sampled_from([200.0, 5e3, 1e6]),
    skewed=st.sampled_from([0.0, 1e4, 1e6]),
    step_at=st.integers(3, 20),
    seed=st.integers(0, 1000),
)
def test_what_is_used_is_never_worse_than_the_raw_clocks_on_held_out_anchors(
    clocks: int, offset: float, drift: float, noise: float, skewed: float, step_at: int, seed: int
) -> None:
    def late(kind: int, members: np.ndarray) -> np.ndarray:
        return np.where(kind == ALL_REDUCE, members % 2 * skewed, 0.0)

    simulation = Simulation(clocks, offset, drift, noise, late, seed=seed)
    alignment = Alignment()
    for number in range(1, 21):
        if number == step_at:
            simulation.offsets[0] += offset
        simulation.run(alignment, number, number + 1)

        residuals = alignment.residuals()
        if residuals is not None:
            used = residuals.in_use(fitted=alignment.fitted)
            assert used[0] <= residuals.raw_median_ns
            assert used[1] <= residuals.raw_p90_ns


@pytest.mark.parametrize("seed", range(5))
def test_new_clocks_may_join(seed: int) -> None:
    simulation = Simulation(4, noise_ns=1_000, seed=seed)
    alignment = Alignment()
    alignment.grow(2)

    simulation.run(alignment, 1, 30)

    assert simulation.error(alignment, 30 * SECOND) < 5_000
