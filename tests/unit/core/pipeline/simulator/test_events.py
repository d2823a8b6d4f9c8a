"""The simulation against a naive one that shares no code with it, and what no order of choices may do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.choosing import FREE, Choosing
from megatronapp.core.pipeline.lanes import WHOLE
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Run, Schedule, dynamic, run, strict
from tests.support.naive_pipeline import Key, Naive
from tests.support.random_pipelines import Case, random_case

SEEDS = [*range(100), *(pytest.param(seed, marks=pytest.mark.scale) for seed in range(100, 1000))]
BLOCKS = [0, *(pytest.param(block, marks=pytest.mark.scale) for block in range(1, 40))]


def key_of(layout: Layout, stage: int, operation: Operation) -> Key:
    return operation.kind.letter, layout.part(stage, operation.chunk), operation.microbatch


def naive_of(case: Case, schedule: Schedule) -> Naive:
    layout = case.layout
    operations = {
        key_of(layout, stage, layout.operation(number)): (stage, number)
        for stage in range(layout.stages)
        for number in range(layout.operations)
    }
    by_place = [
        sorted(range(layout.operations), key=lambda n, s=stage: schedule.places[s, n]) for stage in range(layout.stages)
    ]
    return Naive(
        stages=[[layout.part(stage, chunk) for chunk in range(layout.chunks)] for stage in range(layout.stages)],
        microbatches=layout.microbatches,
        split=layout.split,
        strict=schedule.strict,
        cap=schedule.caps,
        orders=[
            [key_of(layout, stage, layout.operation(n)) for n in by_place[stage]] for stage in range(layout.stages)
        ],
        ticks={key: int(case.durations[place]) for key, place in operations.items()},
        delay={key: case.links.latency_ns + int(case.late[place]) for key, place in operations.items()},
        occupancy=case.links.transfer_ns,
        shared=case.links.shared_stages,
        blocking=case.links.blocking,
        by_need=schedule.by_need and case.links.shared_stages < 2,
    )


def assert_same(naive: Naive, done: Run) -> None:
    layout = done.layout
    begins = {
        key_of(layout, stage, layout.operation(number)): int(done.begins[stage, number])
        for stage in range(layout.stages)
        for number in range(layout.operations)
    }
    assert naive.run()
    assert done.complete
    assert naive.begins == begins
    assert naive.peaks == list(done.peaks)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_naive_simulation_comes_to_the_same(seed: int) -> None:
    case = random_case(seed)

    assert_same(naive_of(case, case.dynamic()), case.run())
    replayed = case.replayed()
    assert_same(naive_of(case, replayed), case.run(replayed))


@pytest.mark.parametrize("block", BLOCKS)
def test_no_order_of_choices_sticks_or_exceeds_the_cap(block: int) -> None:
    stuck_without_reservation = tight = 0
    for seed in range(250 * block, 250 * (block + 1)):
        case = random_case(seed)

        done = case.run()

        assert done.complete, seed
        assert all(peak <= cap for peak, cap in zip(done.peaks, case.caps, strict=True)), seed
        if case.layout.stages > 1 and case.layout.chunks > 1 and case.layout.microbatches >= 3:
            tight += max(case.caps) <= case.layout.chunks + 2
            stuck_without_reservation += (
                max(case.caps) <= case.layout.chunks + 2 and not case.run(case.dynamic(reserve=False)).complete
            )
    assert stuck_without_reservation > tight / 2


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_is_what_it_repeats_and_waits_for_no_cap(seed: int) -> None:
    case = replace(random_case(seed), links=Links(latency_ns=2))
    dynamic = case.run()

    replay = case.run(case.replayed())

    assert replay.orders() == dynamic.orders()
    assert (replay.begins <= dynamic.begins).all()


def test_everything_of_one_time_is_taken_before_a_choice() -> None:
    """Stage 1's F and B become ready at the same moment; it takes B, which stands first, whichever came first."""
    layout = Layout(stages=2, microbatches=2)
    forward, backward = ([Operation(kind, 0, i) for i in range(2)] for kind in (0, 1))
    hint = Schedule("backward-first", np.array([[2, 3, 0, 1]] * 2), (2, 2), strict=False)
    durations = np.array([[3, 3, 1, 1], [3, 1, 1, 1]])

    done = run(layout, hint, durations, wire(layout, Links()))

    assert done.orders()[1] == [forward[0], backward[0], forward[1], backward[1]]
    assert done.begins[1].tolist() == [3, 7, 6, 8]


def test_a_pending_wgrad_holds_its_share_of_the_memory() -> None:
    layout = Layout(stages=1, microbatches=4, split=True)
    f, b, w = ([Operation(kind, 0, i) for i in range(4)] for kind in (0, 1, 2))
    order = [f[0], b[0], f[1], b[1], f[2], b[2], f[3], b[3], *w]
    schedule = strict("late-wgrad", layout, [order])
    times = np.ones((1, 12), np.int64)

    whole = run(layout, schedule, times, wire(layout, Links()))
    part = run(layout, Schedule("", schedule.places, (4,), True, pending=WHOLE // 4), times, wire(layout, Links()))

    assert whole.peaks == (4.0,)
    assert part.peaks == (1.75,)


def test_what_comes_after_a_choice_was_made_is_not_known_to_it() -> None:
    layout = Layout(stages=4, chunks=2, microbatches=16, split=True)
    schedule = dynamic("", layout, orders.all_stages("interleaved-zb", layout), [11] * layout.stages)
    durations = np.tile(np.repeat([52, 72, 34], layout.chunks * layout.microbatches), (layout.stages, 1))

    def end_of(choosing: Choosing) -> int:
        return run(layout, schedule, durations, wire(layout, Links()), choosing=choosing).end_ns

    in_time, hasty, afterwards = end_of(Choosing(5, 2)), end_of(Choosing(1000, 2)), end_of(Choosing(0, 2))
    assert end_of(FREE) < in_time < min(hasty, afterwards)


def test_an_order_that_is_run_as_it_is_has_nothing_to_choose() -> None:
    layout = Layout(stages=2, chunks=1, microbatches=4, split=False)
    fixed = strict("", layout, orders.all_stages("1f1b", layout))
    durations, wiring = np.full((2, layout.operations), 100, np.int64), wire(layout, Links())

    ends = {run(layout, fixed, durations, wiring, choosing=each).end_ns for each in (FREE, Choosing(50, 70))}

    assert len(ends) == 1


@pytest.mark.parametrize(("host_ns", "end_ns"), [((4, 4), 60), ((15, 5), 65), ((30, 30), 120)])
def test_an_operation_does_not_end_before_its_host_has_launched_it(host_ns: tuple[int, int], end_ns: int) -> None:
    layout = Layout(stages=1, microbatches=2)
    fixed = strict("", layout, orders.all_stages("1f1b", layout))
    durations = np.array([[10, 10, 20, 20]])

    done = run(layout, fixed, durations, wire(layout, Links()), choosing=Choosing(host_ns=np.array([host_ns])))

    assert done.end_ns == end_ns
    assert done.ends.max() == end_ns


def test_a_host_makes_no_choice_while_it_launches() -> None:
    """An order that is given is launched ahead of the device, and a long launch hidden behind all operations before."""
    layout = Layout(stages=1, microbatches=2, split=True)
    order = orders.all_stages("interleaved-zb", layout)
    durations = np.array([[10, 10, 10, 10, 2, 2]])
    busy = Choosing(lead_ns=1000, host_ns=np.array([[14, 1, 1]]))

    def end_of(schedule: Schedule) -> int:
        return run(layout, schedule, durations, wire(layout, Links()), choosing=busy).end_ns

    assert end_of(strict("", layout, order)) == 14 + 10 + 2 + 10 + 10 + 2
    assert end_of(dynamic("", layout, order, [2])) == 14 + 10 + 2 + 2 + 10 + 10 + 2  # F1 is chosen as W0 begins
