"""What a row of bench.dpp must show."""

from __future__ import annotations

import pytest

from bench import dpp
from bench._slept_pipeline import DYNAMIC, FILLING, HINT, REPLAY, STOCK, Measured, Setting

LENGTH = next(each for each in dpp.SCENARIOS if each.length_cv)


SECONDS = {STOCK: 1.2, DYNAMIC: 1.0, REPLAY: 1.01}


def row(hint: str = HINT, *, longer: float = 1.0, peak: int = 1) -> dict[str, object]:
    """longer: measured ÷ predicted seconds."""
    runs = {mode: Measured([each * longer] * 5, [0.02] * 5, 5e-5, peak) for mode, each in SECONDS.items()}
    setting = Setting(LENGTH, (1.0, 1.0, 1.0), 0.0, 20.0, 16, 5, hint=hint)
    return dpp.judged(setting, "1:1:1", runs, {mode: [each] * 5 for mode, each in SECONDS.items()})


@pytest.mark.parametrize(("hint", "must", "ok"), [(HINT, None, True), (FILLING, 1.03, False)])
def test_what_the_dynamic_order_gains_over_its_replay_is_judged_with_the_designs_order_alone(
    hint: str, must: float | None, ok: bool
) -> None:
    found = row(hint)

    assert found["dynamic_over_replay"] == 1.01
    assert (found["dynamic_over_replay_must"], found["ok"]) == (must, ok)


@pytest.mark.parametrize(
    "missed",
    [pytest.param({"longer": 1.06}, id="6 % longer than predicted"), pytest.param({"peak": 10**6}, id="above the cap")],
)
def test_a_row_is_missed_by_a_wrong_prediction_or_too_much_in_flight(missed: dict[str, float]) -> None:
    assert row()["ok"] is True
    assert row(**missed)["ok"] is False  # type: ignore[arg-type]
