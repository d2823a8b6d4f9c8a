"""When passes begin: checked against a replay, pass by pass."""

from dataclasses import replace

import numpy as np
import pytest

from bench.scale.faults import Fault, What
from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.noise import Beside
from bench.scale.scenarios import INTERLEAVED, PLAIN, layouts
from bench.scale.schedule import pipeline
from megatronapp.detector.steps import StepTable
from megatronapp.detector.whatif.cost import cost_ratio

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


def test_an_interleaved_step_is_as_computed_by_hand() -> None:
    """Two stages of two chunks, two microbatches; forward takes 1 s, backward 2 s. Warm-up is four passes on stage 0,
    two on stage 1, as in megatron-core."""
    schedule = pipeline(2, 2, 2)
    seconds = np.where(schedule.backward, 2.0, 1.0)[..., None]

    times = schedule.run(np.zeros((2, 1)), seconds, np.zeros_like(seconds))

    assert times.begin[0, :, 0].tolist() == [0, 1, 2, 3, 6, 9, 11, 13]
    assert times.begin[1, :, 0].tolist() == [1, 2, 3, 4, 6, 7, 9, 11]
    assert times.received[1, :, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("layout", [each for kind in (PLAIN, INTERLEAVED) for each in layouts(64, kind=kind)])
def test_a_slow_gpu_costs_a_simulated_step_what_the_detector_makes_of_it(layout: Layout) -> None:
    rank, ratio = layout.rank(0, 0, layout.pp - 1), 1.5
    healthy = Spec(layout, 15.0, (), Beside(host=0, data=0, transfer=0, microbatch=0, optimizer=0))
    usual = _judged(healthy)
    slow = _judged(replace(healthy, faults=(Fault(What.COMPUTE, (rank,), ratio, 1),)))

    cost = cost_ratio(slow, {rank: ratio})

    assert cost - 1 == pytest.approx(slow.duration.max() / usual.duration.max() - 1, rel=0.15)


def _judged(spec: Spec) -> StepTable:
    """The newest of a job's first steps that is judged."""
    job = Job(spec, 0)
    feed = TableFeed(job)
    for _ in range(6):
        list(feed.step(job.step()))
    assert feed.engine.judge.view is not None
    return feed.engine.judge.view.table
