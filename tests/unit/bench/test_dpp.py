"""What a row of bench.dpp must show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench import dpp
from bench._slept_pipeline import DYNAMIC, MODES, QUIET, REPLAY, STOCK, Measured, Setting, simulated

LENGTH = next(each for each in dpp.SCENARIOS if each.length_cv)
SETTING = Setting(LENGTH, (1.0, 1.0, 1.0), 0.0, 20.0, 16, 5)
SECONDS = {STOCK: 1.2, DYNAMIC: 1.0, REPLAY: 1.04}


def row(*, longer: float = 1.0, peak: int = 1, replay_seconds: float = SECONDS[REPLAY]) -> dict[str, object]:
    """longer: measured ÷ predicted seconds."""
    seconds = SECONDS | {REPLAY: replay_seconds}
    host_ns = np.full((4, 3), 500_000)
    runs = {mode: Measured([each * longer] * 5, [0.02] * 5, host_ns, 5e-5, peak) for mode, each in seconds.items()}
    predicted = {mode: [each] * 5 for mode, each in seconds.items()}
    return dpp.judged(SETTING, "1:1:1", runs, predicted, predicted)


@pytest.mark.parametrize(
    "missed",
    [
        pytest.param({"longer": 1.06}, id="6 % longer than predicted"),
        pytest.param({"peak": 10**6}, id="above the cap"),
        pytest.param({"replay_seconds": 1.02}, id="hardly faster than its replay"),
    ],
)
def test_a_row_is_missed_by_each_thing_that_it_must_show(missed: dict[str, float]) -> None:
    assert row()["ok"] is True
    assert row(**missed)["ok"] is False  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_a_prediction_has_what_operations_take_their_hosts(mode: str) -> None:
    quiet = replace(SETTING, scenario=QUIET)
    kinds = 2 if mode == STOCK else 3
    host_ns = np.full((quiet.stages, kinds), 5_000_000)
    if mode == STOCK:
        host_ns[:, -1] *= 2  # holds W, too

    predicted = simulated(quiet, mode, 1, host_ns)

    assert predicted.end_ns == simulated(replace(quiet, operation_ms=25.0), mode, 1).end_ns
