"""The bench of when to choose: pace loses less than haste."""

from __future__ import annotations

import numpy as np

from bench._dpp_predicted import CASES
from bench.dispatch_ahead import gains, pipeline


def test_pace_loses_less_than_haste() -> None:
    predicted = pipeline(stages=4, microbatches=8)

    found = [gains(predicted, case, seed, launch_ns=200_000) for case in CASES for seed in range(4)]

    mean = {mode: float(np.mean([each[mode] for each in found])) for mode in found[0]}
    assert mean["free"] > mean["paced"] > mean["soon"]
