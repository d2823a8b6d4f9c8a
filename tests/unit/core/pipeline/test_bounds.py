"""Published closed forms against simulated schedules."""

from __future__ import annotations

import pytest

from megatronapp.core.pipeline import bounds, orders
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Run, run, strict
from megatronapp.core.pipeline.simulator.times import constant_durations, equal_times
from tests.support.overlapped import results_together


def simulated(layout: Layout, name: str, forward: int, dgrad: int, wgrad: int, latency: int) -> Run:
    durations = constant_durations(layout, equal_times(layout, forward, dgrad, wgrad))
    stages = orders.all_stages(name, layout)
    late = results_together(layout, stages, durations)
    return run(layout, strict(name, layout, stages), durations, wire(layout, Links(latency_ns=latency)), late=late)


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (8, 24), (8, 32)])
def test_1f1b_takes_what_is_published(stages: int, microbatches: int) -> None:
    done = simulated(Layout(stages=stages, microbatches=microbatches), "1f1b", 1800, 1500, 900, 60)

    assert done.end_ns == bounds.one_f1b_cost(stages, microbatches, 4200, 60)


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(4, 2, 8), (8, 3, 24), (8, 4, 32)])
def test_interleaved_takes_a_latency_a_stage_more_than_published(stages: int, chunks: int, microbatches: int) -> None:
    done = simulated(
        Layout(stages=stages, chunks=chunks, microbatches=microbatches), "interleaved", 1200, 2400, 1200, 60
    )

    assert done.end_ns == bounds.interleaved_cost(stages, chunks, microbatches, 4800, 60) + stages * 60


def test_zb_h1_of_equal_times_reaches_the_bound_of_the_split() -> None:
    done = simulated(Layout(stages=8, microbatches=32, split=True), "zb-h1", 1000, 1000, 1000, 0)

    assert done.end_ns == bounds.split_bound(8, 32, 1000, 3000, 0)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_dualpipev_has_the_bubble_of_dualpipe_on_twice_the_devices(stages: int) -> None:
    layout = Layout(stages=stages, chunks=2, microbatches=6 * stages, split=True, placement=Placement.V)

    done = simulated(layout, "dualpipev", 2000, 2000, 2000, 0)

    idle = done.end_ns - done.durations.sum(axis=1)

    assert idle.max() == bounds.dualpipe_bubble(2 * stages, 3000, 2000, 1000)


def test_memory_of_v_half_and_v_min() -> None:
    assert [bounds.v_half_memory(p) for p in (8, 16, 24)] == [5, 9, 13]
    assert [bounds.v_min_memory(p) for p in (8, 16, 24)] == [4, 6, 9]
