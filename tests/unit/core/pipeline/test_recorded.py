from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.replay import replay_recorded
from megatronapp.core.pipeline.simulator.run import run, strict
from megatronapp.core.pipeline.simulator.times import Variation, equal_times


def recorded(layout: Layout, steps: int, links: Links) -> Recorded:
    """Simulated steps as a recording."""
    wiring = wire(layout, links)
    schedule = strict("", layout, orders.all_stages("interleaved", layout))
    times = equal_times(layout, 10_000, 10_000, 10_000)
    runs = [
        run(layout, schedule, Variation(jitter_cv=0.2).draw(layout, times, np.random.default_rng(seed))[0], wiring)
        for seed in range(steps)
    ]
    return Recorded(layout, np.stack([each.begins for each in runs]), np.stack([each.ends for each in runs]))


LAYOUT = Layout(stages=4, chunks=2, microbatches=8)


def test_steps_with_blocking_messages_are_predicted_from_the_others() -> None:
    steps = recorded(LAYOUT, 4, Links(latency_ns=3_000, blocking=True))

    for step in range(4):
        assert replay_recorded(steps, step).end_ns == steps.pipeline_ns[step]
        assert replay_recorded(steps, step, messages=False).end_ns < steps.pipeline_ns[step]
    assert steps.usual_message_ns() == 3_000


def test_orders_and_times_are_those_of_the_recording() -> None:
    steps = recorded(LAYOUT, 2, Links())

    assert steps.orders(0) == orders.all_stages("interleaved", LAYOUT)
    times = steps.pass_times(0.25)
    assert times.shape == (3, 4, 2)
    forward = steps.durations[:, 1].reshape(2, 2, 2, 8)[:, Kind.FORWARD, 1]
    assert times[Kind.FORWARD, 1, 1] == pytest.approx(forward.mean())
    assert times[Kind.WGRAD] == pytest.approx(times[Kind.BACKWARD] / 3)
    samples = steps.samples(0.25)
    assert sorted(samples[Kind.FORWARD, 1, 1]) == sorted(forward.ravel())


def test_a_message_takes_what_its_operation_begins_later_than_it_could() -> None:
    """F0 ends on stage 0 at 10; stage 1 begins it at 13, and its own B at once."""
    layout = Layout(stages=2, microbatches=1)
    begins = np.array([[[0, 40], [13, 20]]])
    ends = np.array([[[10, 50], [20, 35]]])
    steps = Recorded(layout, begins, ends)

    message = steps.message_ns()

    assert message[1, layout.number(Operation(Kind.FORWARD, 0, 0))] == 3
    assert message[0, layout.number(Operation(Kind.BACKWARD, 0, 0))] == 5
    assert message.sum() == 8
