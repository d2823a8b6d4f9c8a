"""The bench of when to choose: pace loses less than haste."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench._dpp_predicted import CASES, STOCK, Case
from bench.dispatch_ahead import gains, pipeline
from megatronapp.core.pipeline.choosing import CHOOSING_NS, FREE, LAUNCH_NS
from megatronapp.core.pipeline.operations import Kind


def test_pace_loses_less_than_haste() -> None:
    predicted = pipeline(stages=4, microbatches=8)

    found = [gains(predicted, case, seed, launch_ns=200_000) for case in CASES for seed in range(4)]

    mean = {mode: float(np.mean([each[mode] for each in found])) for mode in found[0]}
    assert mean["free"] > mean["paced"] > mean["soon"]


def test_in_quiet_steps_an_order_that_is_given_gains_more_than_choices_however_slow_the_host() -> None:
    for host_ms in ((0, 0, 0), (5.0, 5.0, 1.0)):
        found = gains(pipeline(2, 8, (5.0, 6.9, 3.3), host_ms), Case("quiet"), 0, 200_000)

        assert found["planned"] > found["free"] > found["paced"] + 0.01


def test_predictions_take_choices_as_the_trainer_makes_them() -> None:
    measured = pipeline(2, 8, host_ms=(5.0, 4.0, 1.0))
    layout = measured.layout

    choosing = measured.choosing(layout)
    stock = measured.choosing(replace(layout, split=False))

    assert (np.asarray(choosing.lead_ns) == 5_000_000 + CHOOSING_NS).all()
    assert choosing.launch_ns == LAUNCH_NS
    assert np.asarray(stock.host_ns)[0, layout.lane(Kind.BACKWARD, 0)] == 5_000_000
    assert measured.run(Case("quiet"), STOCK, 0).end_ns >= measured.run(Case("quiet"), STOCK, 0, FREE).end_ns
    assert pipeline(2, 8).choosing(layout) is FREE
