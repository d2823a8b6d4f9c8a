from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.pipeline.caps import stock_cap
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.pass_codes import packed
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import dynamic, run, strict
from megatronapp.detector.whatif import cost_ratio, slowdown_ratio, stage_order
from tests.support.random_pipelines import random_order
from tests.unit.detector.whatif.tables import step_table, tensor_groups


def test_without_pipeline_the_step_is_as_slow_as_its_slowest_replica():
    table = step_table(1, 4, np.array([1.0, 1.0, 1.2, 1.0]))

    assert cost_ratio(table, {2: 1.2}) == pytest.approx(1.2)


def test_a_slow_last_stage_slows_the_steady_phase_and_not_the_bubble():
    table = step_table(4, 1, np.array([1.0, 1.0, 1.0, 1.5]), microbatches=8)

    slow, healthy = 8 * 4.5 + 3 * 3.0, 8 * 3.0 + 3 * 3.0
    assert cost_ratio(table, {3: 1.5}) == pytest.approx(slow / healthy)


@pytest.mark.parametrize(("chunks", "slow"), [(1, 0), (1, 3), (2, 1), (2, 3)])
def test_with_w_split_a_slow_rank_costs_what_megadpp_loses_by_it(chunks, slow):
    """As the simulator says, whose stages also choose anew where one is slow."""
    effects = np.ones(4)
    effects[slow] = 1.5
    table = step_table(4, 1, effects, microbatches=8, chunks=chunks, split=True)
    layout = Layout(stages=4, chunks=chunks, microbatches=8, split=True)
    hint = dynamic("hint", layout, all_stages("interleaved-zb", layout), [stock_cap(layout)] * 4)

    def step_ns(pace):
        durations = np.repeat(np.rint(pace * 1e6).astype(np.int64)[:, None], layout.operations, axis=1)
        return run(layout, hint, durations, wire(layout, Links())).end_ns

    assert cost_ratio(table, {slow: 1.5}) == pytest.approx(step_ns(effects) / step_ns(np.ones(4)), rel=0.02)


@pytest.mark.parametrize(("split", "seed"), [(True, 1), (True, 2), (False, 3)])
def test_where_stages_told_what_they_ran_that_order_is_played_through(split, seed):
    layout = Layout(stages=4, chunks=2, microbatches=8, split=split)
    hints = [random_order(layout, np.random.default_rng([seed, stage])) for stage in range(4)]
    ran = simulated(layout, dynamic("random", layout, hints, [4] * 4), np.ones(4)).orders()
    effects = np.array([1.0, 1.5, 1.0, 1.0])
    table = step_table(4, 1, effects, microbatches=8, chunks=2, split=split)

    told = replace(table, orders=tuple(codes(order) for order in ran))

    replayed = [simulated(layout, strict("replay", layout, ran), pace).end_ns for pace in (effects, np.ones(4))]
    assert cost_ratio(told, {1: 1.5}) == pytest.approx(replayed[0] / replayed[1])
    assert cost_ratio(told, {1: 1.5}) != pytest.approx(cost_ratio(table, {1: 1.5}), rel=1e-3)


def test_an_order_that_can_not_be_is_as_if_none_was_told():
    table = step_table(2, 1, np.array([1.0, 1.5]), microbatches=4)
    layout = Layout(stages=2, microbatches=4)
    [first, second] = all_stages("1f1b", layout)
    backward_first = sorted(second, key=lambda each: -each.kind)
    for orders in ((codes(first),), (codes(first), b"\0"), (codes(first), codes(backward_first))):
        assert cost_ratio(replace(table, orders=orders), {1: 1.5}) == cost_ratio(table, {1: 1.5})


def simulated(layout, schedule, pace):
    lengths = np.repeat([1.0, 1.0, 1.0] if layout.split else [1.0, 2.0], layout.chunks * layout.microbatches)
    return run(layout, schedule, np.rint(pace[:, None] * lengths * 1e6).astype(np.int64), wire(layout, Links()))


def codes(order):
    return packed(np.array([each.kind for each in order]), np.array([each.chunk for each in order]))


def test_another_slow_rank_does_not_hide_the_cost():
    table = step_table(1, 4, np.array([1.3, 1.0, 1.2, 1.0]))

    assert cost_ratio(table, {2: 1.2}) == pytest.approx(1.2)
    assert cost_ratio(table, {0: 1.3, 2: 1.2}) == pytest.approx(1.3)


def test_the_slowest_rank_of_a_worker_sets_its_pace():
    table = step_table(1, 2, np.array([1.0, 1.0, 1.4, 1.1]), tensor=2)

    assert cost_ratio(table, {2: 1.4, 3: 1.1}) == pytest.approx(1.4)


def test_collectives_dilute_the_cost():
    groups = tensor_groups(1, 2, 2)
    seconds = np.array([1.0, 1.0, 1.5, 1.0])
    table = step_table(1, 2, seconds, tensor=2, microbatches=4, collective=12.0, groups=groups)

    assert cost_ratio(table, {2: 1.5}) == pytest.approx((4 * 3 * 1.5 + 12) / (4 * 3 + 12))


def test_a_stage_that_everyone_shares_can_be_slow_as_a_whole():
    table = step_table(2, 2, np.array([1.0, 1.0, 2.0, 2.0]), microbatches=4)

    assert cost_ratio(table, {2: 2.0, 3: 2.0}) > 1.5


def test_nothing_slow_costs_nothing():
    table = step_table(2, 2, np.ones(4))

    assert cost_ratio(table, {}) == 1.0
    assert cost_ratio(table, {99: 3.0}) == 1.0


@pytest.mark.parametrize("effect", [0.0, -1.0, float("inf"), float("nan")])
def test_an_effect_that_is_no_ratio_is_refused(effect):
    with pytest.raises(ValueError, match="positive number"):
        cost_ratio(step_table(1, 2, np.ones(2)), {0: effect})


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.floats(1.0, 3.0), st.data())
def test_a_slow_rank_costs_something_and_at_most_its_own_effect(stages, replicas, chunks, effect, data):
    rank = data.draw(st.integers(0, stages * replicas - 1))
    table = step_table(stages, replicas, np.ones(stages * replicas), microbatches=2 * stages, chunks=chunks)

    assert 1.0 - 1e-9 <= cost_ratio(table, {rank: effect}) <= effect + 1e-9


def test_equal_workers_have_no_slowdown():
    assert slowdown_ratio(step_table(3, 2, np.ones(6), microbatches=6)) == pytest.approx(1.0)


def test_unequal_stages_slow_the_job_down():
    table = step_table(2, 1, np.array([1.0, 3.0]), microbatches=8)

    slow, equal = 8 * 9.0 + 3.0, 8 * 6.0 + 6.0
    assert slowdown_ratio(table) == pytest.approx(slow / equal)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_cost_is_that_of_a_pipeline_played_through(stages, replicas, chunks):
    healthy = played_through(stages, chunks, np.ones(stages))
    for stage in range(stages):
        pace, seconds = np.ones(stages), np.ones(stages * replicas)
        pace[stage] = seconds[stage * replicas] = 1.05
        table = step_table(stages, replicas, seconds, microbatches=8, chunks=chunks)

        cost = cost_ratio(table, {stage * replicas: 1.05})

        assert cost == pytest.approx(played_through(stages, chunks, pace) / healthy, abs=1e-9)


def played_through(stages, chunks, pace, microbatches=8):
    """Step time by letting every stage do the next pass of its list as soon as its input is there."""
    waiting = [stage_order(stage, stages, chunks, microbatches) for stage in range(stages)]
    ends, free = {}, np.zeros(stages)
    while any(waiting):
        for stage in range(stages):
            while waiting[stage] and (ready := arrival(waiting[stage][0], ends, stages, chunks)) is not None:
                done = waiting[stage].pop(0)
                seconds = {"forward": 1.0, "backward": 2.0}[done.operation] * pace[stage]
                ends[done] = free[stage] = max(free[stage], ready) + seconds
    return free.max()


def arrival(one, ends, stages, chunks):
    """When the pass of the model's part before (backward: after) has ended; None if it has not."""
    part = one.chunk * stages + one.stage + (-1 if one.operation == "forward" else 1)
    if not 0 <= part < stages * chunks:
        return 0.0
    return ends.get(one._replace(chunk=part // stages, stage=part % stages))
