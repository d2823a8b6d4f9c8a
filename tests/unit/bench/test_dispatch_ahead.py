"""The bench of when to choose: where choosing is free it is the product's simulator, and pace loses less than haste."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from bench import dispatch_ahead as ahead
from bench._dpp_predicted import CASES, HINT, Case, Draws
from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import dynamic, run
from megatronapp.core.pipeline.simulator.times import durations_of
from megatronapp.trainer.pipeline.pace import Durations

LAYOUT = Layout(stages=4, chunks=2, microbatches=8, split=True)
CAP = caps.stock_cap(Layout(stages=4, chunks=2, microbatches=8, split=False))
OPTIONS = argparse.Namespace(passes_ms=[5.2, 7.2, 3.4], launch_ms=0.2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(3))
def test_free_choices_take_what_the_simulator_says(case: Case, seed: int) -> None:
    draws = Draws(LAYOUT)
    draws.base = np.array(OPTIONS.passes_ms)[:, None, None] * np.full((1, 4, 2), 1e6)
    nanoseconds = np.round(draws.base.transpose(1, 0, 2)[..., None] + draws.pads(case, seed))
    late = np.zeros((4, 3, 2, 8), np.int64)
    late[:, :2] = draws.late(case, seed)
    hints = orders.all_stages(HINT, LAYOUT)
    stages = [
        ahead.Stage(StagePolicy(LAYOUT, stage, hint, cap=CAP), ahead.FREE, 0.0, Durations())
        for stage, hint in enumerate(hints)
    ]
    wiring = wire(LAYOUT, Links())
    crossing = late.reshape(4, LAYOUT.operations) * wiring.crosses(LAYOUT)

    seconds = ahead.step_seconds(LAYOUT, stages, nanoseconds, late.astype(float)) / 1e9

    simulated = run(
        LAYOUT, dynamic("", LAYOUT, hints, [CAP] * 4), durations_of(LAYOUT, nanoseconds), wiring, late=crossing
    )
    assert seconds == pytest.approx(simulated.end_ns / 1e9, rel=1e-6)


def test_pace_loses_less_than_haste() -> None:
    learnt = {mode: [Durations() for _ in range(LAYOUT.stages)] for mode in ahead.MODES}

    found = [ahead.gains(LAYOUT, case, seed, OPTIONS, learnt) for case in CASES for seed in range(4)]

    mean = {mode: float(np.mean([each[mode] for each in found])) for mode in ahead.MODES}
    assert mean[ahead.FREE] > mean[ahead.PACED] > mean[ahead.SOON]
