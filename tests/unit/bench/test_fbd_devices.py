"""What bench.fbd makes of the times that it measured on two devices."""

from __future__ import annotations

import pytest

from bench._fbd_devices import FULL, LINEARS, LINK, NONE, REPLICAS, Devices, compared

DEVICES = Devices(preset="1b-wide", microbatches=32, batch=2, steps=5, flags=("--seq-length", "1024"))
TIMES = {"F": 0.010, "B": 0.013, "W": 0.007, "linear 0": 0.003, "linear 1": 0.004, LINK: 350e9}


def test_the_gains_are_held_to_what_they_must_be_and_the_step_to_the_planners() -> None:
    seconds = {NONE: 1.06, FULL: 1.38, LINEARS: 0.84, REPLICAS: 0.56}

    row = compared(DEVICES, TIMES, seconds)

    assert row["linears_share"] == pytest.approx(0.7)
    assert row["predicted_ms"] == pytest.approx(1e3 * (32 * 0.023 + 0.010 + 0.1), rel=0.02)
    assert row["ok"]


def test_a_step_that_the_planner_did_not_expect_fails() -> None:
    assert not compared(DEVICES, TIMES, {NONE: 1.06, FULL: 1.38, LINEARS: 0.60, REPLICAS: 0.56})["ok"]
