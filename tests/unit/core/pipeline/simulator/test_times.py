from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.times import Markov, Variation, equal_times

LAYOUT = Layout(stages=3, chunks=2, microbatches=400, split=True)
TIMES = equal_times(LAYOUT, 2e6, 4e6, 6e6)
LANES = (3, 3, 2, 400)
"""Stages, kinds, chunks, microbatches."""


def drawn(variation: Variation, layout: Layout = LAYOUT, seed: int = 0) -> np.ndarray:
    return variation.draw(layout, TIMES, np.random.default_rng(seed))[0]


def test_jitter_has_its_mean_and_variation() -> None:
    lanes = drawn(Variation(jitter_cv=0.2)).reshape(LANES)

    assert lanes[:, Kind.FORWARD].mean() == pytest.approx(1e6, rel=0.02)
    assert lanes[:, Kind.FORWARD].std() / lanes[:, Kind.FORWARD].mean() == pytest.approx(0.2, rel=0.05)


def test_the_slowest_tensor_rank_sets_the_pace() -> None:
    one, eight = (drawn(Variation(jitter_cv=0.1, tensor=tensor)).mean() for tensor in (1, 8))

    assert 1.1 < eight / one < 1.2  # the expected maximum of eight is 1.42 deviations above the mean


def test_a_long_microbatch_is_long_everywhere() -> None:
    lanes = drawn(Variation(length_cv=0.5)).reshape(LANES)

    lengths = lanes / np.array([1e6, 2e6, 3e6])[None, :, None, None]
    assert np.allclose(lengths, lengths[0, 0, 0], rtol=1e-5)
    assert lengths[0, 0, 0].std() > 0.3


def test_with_and_without_the_split_the_same_is_drawn() -> None:
    split = drawn(Variation(jitter_cv=0.2)).reshape(LANES)
    whole = drawn(Variation(jitter_cv=0.2), Layout(stages=3, chunks=2, microbatches=400)).reshape(3, 2, 2, 400)

    assert np.allclose(whole[:, Kind.BACKWARD], split[:, Kind.BACKWARD] + split[:, Kind.WGRAD], atol=2)
    assert np.array_equal(whole[:, Kind.FORWARD], split[:, Kind.FORWARD])


def test_slow_spells_last_as_long_as_recovery_takes() -> None:
    factors = Markov(2.0, 0.05, 0.2).draw(np.random.default_rng(0), 50, 2000)

    assert set(np.unique(factors)) == {1.0, 2.0}
    assert (factors == 2.0).mean() == pytest.approx(0.05 / 0.25, rel=0.1)
    turns = (np.diff(factors, axis=1) != 0).sum() / 2
    assert (factors == 2.0).sum() / turns == pytest.approx(1 / 0.2, rel=0.1)


def test_a_slow_stage_and_late_messages() -> None:
    variation = Variation(slow_stages={1: 1.5}, late_ratio=0.25, late_ns=7)
    durations, late = variation.draw(LAYOUT, TIMES, np.random.default_rng(0))

    by_stage = durations.mean(axis=1)
    assert by_stage[1] / by_stage[0] == pytest.approx(1.5)
    lanes = late.reshape(LANES)
    assert set(np.unique(lanes)) == {0, 7}
    assert (lanes[:, :2] == 7).mean() == pytest.approx(0.25, rel=0.1)
    assert not lanes[:, Kind.WGRAD].any()


def test_measured_times_are_drawn_from_what_was_measured() -> None:
    samples = {(kind, stage, chunk): np.array([5.0, 9.0]) for kind in Kind for stage in range(3) for chunk in range(2)}

    assert set(np.unique(drawn(Variation(samples=samples)))) == {5, 9}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"jitter_cv": -1}, "coefficient of variation"),
        ({"late_ratio": 2, "late_ns": 1}, "from 0 to 1"),
        ({"slow_stages": {0: 0}}, "0.001 to 1000"),
        ({"tensor": 0}, "at least one tensor-parallel rank"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Variation(**wrong)


def test_times_are_positive_and_no_weeks() -> None:
    with pytest.raises(UsageError, match="positive"):
        equal_times(LAYOUT, 0, 1, 1)
    with pytest.raises(UsageError, match="milliseconds"):
        equal_times(LAYOUT, 1e15, 1, 1)
