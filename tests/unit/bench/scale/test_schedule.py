"""When passes begin: checked against a replay, pass by pass."""

import numpy as np
import pytest

from bench.scale.schedule import pipeline

SHAPES = [(1, 1, 4), (2, 1, 8), (4, 1, 8), (4, 1, 2), (8, 1, 32), (2, 2, 4), (4, 2, 8), (4, 3, 16)]


def drawn(stages: int, chunks: int, microbatches: int, replicas: int = 3) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1)
    schedule = pipeline(stages, chunks, microbatches)
    seconds = random.uniform(0.5, 2, (stages, schedule.length, replicas))
    transfer = random.uniform(0, 0.1, seconds.shape) * schedule.receives[..., None]
    return random.uniform(0, 0.5, (stages, replicas)), seconds, transfer


@pytest.mark.parametrize("shape", SHAPES)
def test_passes_of_a_stage_follow_each_other(shape: tuple[int, int, int]) -> None:
    start, seconds, transfer = drawn(*shape)

    times = pipeline(*shape).run(start, seconds, transfer)

    assert np.allclose(times.end - times.begin, seconds)
    assert (times.begin[:, 0] >= start).all()
    assert (times.begin[:, 1:] >= times.end[:, :-1]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_begins_before_its_message_has_come(shape: tuple[int, int, int]) -> None:
    stages, _, microbatches = shape
    start, seconds, transfer = drawn(*shape)
    schedule = pipeline(*shape)

    times = schedule.run(start, seconds, transfer)

    place = {
        (schedule.backward[s, i], schedule.chunk[s, i] * stages + s, schedule.pass_index[s, i] % microbatches): (s, i)
        for s in range(stages)
        for i in range(schedule.length)
    }
    for (backward, part, microbatch), (s, i) in place.items():
        source = place.get((backward, part + (1 if backward else -1), microbatch))
        if source is not None and stages > 1:
            assert (times.begin[s, i] >= times.end[source] + transfer[s, i] - 1e-9).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stages_time_is_its_passes_and_its_waits(shape: tuple[int, int, int]) -> None:
    start, seconds, transfer = drawn(*shape)
    schedule = pipeline(*shape)

    times = schedule.run(start, seconds, transfer)

    sent = times.sent if schedule.blocking else np.zeros_like(times.sent)
    spent = start + (seconds + times.received).sum(axis=1) + sent[:, :-1].sum(axis=1)
    assert np.allclose(spent, times.end[:, -1])
    assert (times.received >= 0).all()
    assert (times.sent >= 0).all()


def test_equal_passes_take_the_time_of_a_pipeline_with_its_bubble() -> None:
    schedule = pipeline(4, 1, 8)
    seconds = np.where(schedule.backward, 2.0, 1.0)[..., None]

    times = schedule.run(np.zeros((4, 1)), seconds, np.zeros_like(seconds))

    assert times.end.max() == pytest.approx(3.0 * (8 + 4 - 1))


def test_replicas_that_share_experts_do_each_pass_together() -> None:
    start, seconds, transfer = drawn(2, 1, 4, replicas=4)

    times = pipeline(2, 1, 4).run(start, seconds, transfer, couple=2)

    assert np.array_equal(times.begin[..., 0], times.begin[..., 1])
    assert np.array_equal(times.end[..., 2], times.end[..., 3])
    assert not np.array_equal(times.end[..., 1], times.end[..., 2])
