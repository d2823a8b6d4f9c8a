"""What bench.fbd makes of what it saw on real devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench._fbd_devices import COMPARISONS, Devices, Way, batches, compared, in_order
from bench._fbd_launch import LANE_STEPS, LINK, PROFILE, WARM_UP_STEPS, Record

LINEARS, INPUT, SHARED = COMPARISONS["linears"], COMPARISONS["3+1"], COMPARISONS["shared"]
DEVICES = Devices(preset="1b-wide", microbatches=32, batch=2, steps=5, flags=("--seq-length", "1024"))
TIMES = {"F": 0.010, "B": 0.013, "W": 0.007, "linear 0": 0.003, "linear 1": 0.004, LINK: 350e9}


def record(step_seconds: float, losses: tuple[float, ...] = (2.0, 1.0)) -> list[Record]:
    steps = WARM_UP_STEPS + 1 + LANE_STEPS
    return [Record(begins=[number * step_seconds for number in range(steps)], losses=list(losses))]


def linears_in(seconds: float) -> dict[str, list[Record]]:
    whole = next(iter(LINEARS.others))
    ways = {LINEARS.none: 1.06, LINEARS.full: 1.38, LINEARS.name: seconds, whole: 0.56}
    return {PROFILE: [Record(times=TIMES)]} | {name: record(each) for name, each in ways.items()}


def test_the_gains_are_held_to_what_they_must_be_and_the_step_to_the_planners() -> None:
    row = compared(DEVICES, LINEARS, linears_in(0.84))

    assert row["linears_share"] == pytest.approx(0.7)
    assert row["predicted_ms"] == pytest.approx(1e3 * (32 * 0.023 + 0.010 + 0.1), rel=0.02)
    assert row["ok"]


def test_a_step_that_the_planner_did_not_expect_fails() -> None:
    assert not compared(DEVICES, LINEARS, linears_in(0.60))["ok"]


def test_other_losses_than_full_recomputes_fail() -> None:
    seen = linears_in(0.84) | {LINEARS.name: record(0.84, losses=(2.0, 1.1))}

    assert not compared(DEVICES, LINEARS, seen)["ok"]


def test_a_pipelines_step_is_the_planners_with_the_tail_of_stocks() -> None:
    devices = replace(DEVICES, preset="1b-pipeline")
    stage, tail = 0.010, 0.1
    seconds = dict.fromkeys(INPUT.ways, 1.0) | {INPUT.none: 34 * stage + tail, INPUT.full: 0.55, INPUT.name: 0.45}
    seen = {PROFILE: [Record(times=TIMES)]} | {name: record(each) for name, each in seconds.items()}

    row = compared(devices, INPUT, seen)

    assert row["predicted_ms"] == pytest.approx(1e3 * (34 * stage + tail), rel=0.05)
    assert row["gain_over_full"] == pytest.approx(0.55 / 0.45, rel=0.01)


def test_ways_run_side_by_side_where_there_are_devices_for_them() -> None:
    ways = in_order({"four": Way(devices=4), "two": Way(devices=2), "split": Way(devices=2, disaggregated=True)})

    assert [list(each) for each in batches(ways, 4)] == [["split", "two"], ["four"]]
    assert [list(each) for each in batches(ways, 2)] == [["split"], ["two"], ["four"]]


def test_a_shared_device_is_a_backward_ranks_too() -> None:
    run = DEVICES.run(SHARED.name, SHARED.ways[SHARED.name], first=2)

    assert run.devices == (2, 3, 2)
