"""The what-if of recorded jobs, on jobs that are recorded by replaying a known schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.detector.whatif.equalise import slowdown
from tests.unit.detector.whatif.recordings import Layout, record

LAYOUTS = [Layout(1, 1, 4, 2), Layout(2, 1, 4, 3), Layout(4, 1, 8, 1), Layout(2, 2, 4, 2), Layout(4, 3, 8, 2)]


def only(recording, kept):
    """The recording with some of its operations."""
    return type(recording)(
        tuple(recording.operations[i] for i in kept),
        recording.steps,
        recording.replicas,
        recording.start[kept],
        recording.duration[kept],
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_work_has_no_slowdown(layout):
    result = slowdown(record(layout))

    assert result.ratio == pytest.approx(1.0)
    assert result.delay_ratio == pytest.approx(1.0)
    for breakdown in (result.by_replica, result.by_stage, result.by_operation):
        assert breakdown.ratio == pytest.approx(np.ones(len(breakdown.keys)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_of_recorded_times_takes_as_long_as_the_recorded_steps(layout):
    generator = np.random.default_rng(1)
    recording = record(layout, scale=lambda key, shape: generator.uniform(0.5, 2.0, shape))

    result = slowdown(recording)

    assert result.replayed_seconds == pytest.approx(result.recorded_seconds)


def test_a_slow_replica_is_found_by_its_replica_and_a_slow_stage_by_its_stage():
    layout = Layout(4, 1, 8, 3)

    by_replica = slowdown(record(layout, scale=lambda key, shape: 1 + 0.5 * (np.arange(shape[-1]) == 2))).by_replica
    by_stage = slowdown(record(layout, scale=lambda key, shape: 1.5 if key.stage == 3 else 1.0)).by_stage

    assert next(iter(by_replica.as_dict())) == "2"
    assert next(iter(by_stage.as_dict())) == "3"
    assert by_stage.as_dict()["3"] > 1.2


def test_lost_operations_take_their_types_typical_time():
    recording = record(Layout(2, 1, 4, 2))
    recording.start[3, 1, 0] = recording.duration[3, 1, 0] = np.nan

    assert slowdown(recording).ratio == pytest.approx(1.0)


def test_a_gc_that_was_not_recorded_did_not_run():
    quiet = record(Layout(2, 1, 4, 2))
    loud = record(Layout(2, 1, 4, 2), scale=lambda key, shape: 500.0 if key.type == "gc" else 1.0)
    gc = [i for i, operation in enumerate(loud.operations) if operation.key.type == "gc"]
    loud.start[gc, 1:], loud.duration[gc, 1:] = np.nan, np.nan

    assert slowdown(loud).replayed_seconds[1:] == pytest.approx(slowdown(quiet).replayed_seconds[1:], rel=0.01)


def test_messages_that_do_not_pair_are_an_error_that_names_the_stage():
    recording = record(Layout(2, 1, 4, 1))
    lost = next(i for i, o in enumerate(recording.operations) if o.key == (1, "forward-recv", 3))
    kept = [i for i in range(len(recording.operations)) if i != lost]

    with pytest.raises(DataError, match="forward-recv"):
        slowdown(only(recording, kept))


@pytest.mark.parametrize("layout", [Layout(4, 1, 8, 2), Layout(2, 2, 4, 2)])
def test_a_trace_without_messages_still_knows_how_a_pipeline_works(layout):
    recording = record(layout, scale=lambda key, shape: 1.5 if key.stage == 1 else 1.0)
    kept = [i for i, o in enumerate(recording.operations) if not o.key.type.endswith(("-send", "-recv"))]

    assert slowdown(only(recording, kept)).ratio == pytest.approx(slowdown(recording).ratio, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32 - 1), st.floats(0.2, 5.0))
def test_a_job_that_runs_at_another_speed_has_the_same_slowdown(layout, seed, speed):
    factors = {}

    def scale(key, shape):
        if key not in factors:
            factors[key] = np.random.default_rng([seed, len(factors)]).uniform(0.5, 2.0, shape)
        return factors[key]

    slow = slowdown(record(layout, scale=scale))
    fast = slowdown(record(layout, scale=lambda key, shape: scale(key, shape) * speed))

    assert fast.ratio == pytest.approx(slow.ratio)
