from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import TrainingError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.bound import step_bound_ns
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import strict
from megatronapp.core.pipeline.simulator.steps import Setting, StepEnd, pipeline_time_ns, simulate_steps
from megatronapp.core.pipeline.simulator.times import Variation, equal_times
from tests.support.random_pipelines import random_case

LAYOUT = Layout(stages=4, microbatches=8)
TIMES = equal_times(LAYOUT, 10_000, 10_000, 10_000)
QUIET = Setting(variation=Variation(), links=Links(), end=StepEnd())


def schedule(layout: Layout = LAYOUT, name: str = "1f1b"):
    return strict(name, layout, orders.all_stages(name, layout))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 100_000), st.booleans())
def test_no_schedule_beats_the_bound(seed: int, barrier: bool) -> None:
    case = replace(random_case(seed), late=np.int64(0))
    done = case.run()

    bound = step_bound_ns(case.layout, case.durations, wire(case.layout, case.links), barrier=barrier)

    assert pipeline_time_ns(done, barrier=barrier) >= bound


def test_1f1b_reaches_the_bound_without_the_split() -> None:
    steps = simulate_steps(LAYOUT, schedule(), TIMES, QUIET)

    assert steps.step_ns.tolist() == steps.bound_ns.tolist() == [30_000 * (8 + 3)]
    assert steps.over_bound == 0
    assert steps.bubble.tolist() == [pytest.approx(3 / 11)]
    assert steps.peaks == (4.0, 3.0, 2.0, 1.0)


def test_a_step_ends_with_gradient_sync_and_optimizer() -> None:
    setting = replace(QUIET, end=StepEnd(grad_sync_ns=5_000, optimizer_ns=700))

    assert simulate_steps(LAYOUT, schedule(), TIMES, setting).step_ns.tolist() == [30_000 * 11 + 5_700]


def test_without_a_barrier_a_step_takes_what_the_slowest_stage_needs() -> None:
    layout = replace(LAYOUT, microbatches=32, split=True)
    made = schedule(layout, "zb-h2")
    with_barrier, without = (
        simulate_steps(layout, made, TIMES, replace(QUIET, end=StepEnd(barrier=barrier))).step_ns[0]
        for barrier in (True, False)
    )

    assert without == 30_000 * 32  # no bubble of its own
    assert with_barrier == without + 3 * 10_000


def test_replicas_wait_for_the_slowest() -> None:
    one = replace(QUIET, variation=Variation(jitter_cv=0.3), draws=20)
    eight = replace(one, replicas=8)

    alone, together = (simulate_steps(LAYOUT, schedule(), TIMES, setting) for setting in (one, eight))

    assert (together.step_ns >= alone.step_ns).all()  # the first replica's draws are the same
    assert together.step_ns.mean() > 1.05 * alone.step_ns.mean()


def test_the_same_seed_draws_the_same() -> None:
    setting = replace(QUIET, variation=Variation(jitter_cv=0.3), draws=3)

    first, second = (simulate_steps(LAYOUT, schedule(), TIMES, setting).step_ns.tolist() for _ in range(2))
    other = simulate_steps(LAYOUT, schedule(), TIMES, replace(setting, seed=1)).step_ns.tolist()

    assert first == second != other


def test_stages_that_wait_for_ever_are_told() -> None:
    layout = Layout(stages=2, chunks=2, microbatches=2)
    wrong = [list(reversed(order)) for order in orders.all_stages("interleaved", layout)]
    keeps_lanes = [sorted(order, key=lambda each: (-each.kind, each.chunk, each.microbatch)) for order in wrong]

    with pytest.raises(TrainingError, match="upside down stops for ever: stage 0 after nothing"):
        simulate_steps(layout, strict("upside down", layout, keeps_lanes), equal_times(layout, 1e3, 1e3, 1e3), QUIET)


def test_a_shared_way_out_is_slower_than_links_of_their_own() -> None:
    def step_ns(links: Links) -> float:
        return float(simulate_steps(LAYOUT, schedule(), TIMES, replace(QUIET, links=links)).step_ns[0])

    own, shared = step_ns(Links(transfer_ns=9_000)), step_ns(Links(transfer_ns=9_000, shared_stages=4))
    blocking = step_ns(Links(transfer_ns=9_000, blocking=True))

    assert step_ns(Links()) < own < shared
    assert own < blocking


def test_a_slow_link_delays_and_dynamic_order_saves_much_of_it() -> None:
    """The published case (docs/pipeline.md): one link as slow as two forwards, against interleaved 1F1B."""
    from megatronapp.core.pipeline import caps
    from megatronapp.core.pipeline.simulator.run import dynamic

    whole = Layout(stages=8, chunks=2, microbatches=32)
    split = replace(whole, split=True)
    times = equal_times(whole, 1e6, 1e6, 1e6)
    setting = replace(QUIET, links=Links(latency_ns=20_000, slow=((3, 4, 100.0), (4, 3, 100.0))))

    stock = simulate_steps(whole, schedule(whole, "interleaved"), times, setting)
    hint = dynamic("", split, orders.all_stages("interleaved", split), [caps.stock_cap(whole)] * 8)
    free = simulate_steps(split, hint, times, setting)

    assert stock.step_ns[0] / free.step_ns[0] > 1.3
