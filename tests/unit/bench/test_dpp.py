"""What a row of bench.dpp must show."""

from __future__ import annotations

import pytest

from bench import dpp
from bench._slept_pipeline import DYNAMIC, REPLAY, STOCK, Measured, Setting

LENGTH = next(each for each in dpp.SCENARIOS if each.length_cv)


SECONDS = {STOCK: 1.2, DYNAMIC: 1.0, REPLAY: 1.04}


def row(*, longer: float = 1.0, peak: int = 1, replay_seconds: float = SECONDS[REPLAY]) -> dict[str, object]:
    """longer: measured ÷ predicted seconds."""
    seconds = SECONDS | {REPLAY: replay_seconds}
    runs = {mode: Measured([each * longer] * 5, [0.02] * 5, 5e-5, peak) for mode, each in seconds.items()}
    setting = Setting(LENGTH, (1.0, 1.0, 1.0), 0.0, 20.0, 16, 5)
    return dpp.judged(setting, "1:1:1", runs, {mode: [each] * 5 for mode, each in seconds.items()})


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
