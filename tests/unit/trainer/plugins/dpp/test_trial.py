"""The trial of stock against the dynamic order."""

import pytest

from megatronapp.trainer.plugins.dpp.trial import Trial


@pytest.mark.parametrize(("dynamic_seconds", "stock_seconds"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)])
def test_steps_run_in_turns_and_then_as_the_faster_kind(dynamic_seconds: float, stock_seconds: float) -> None:
    trial = Trial(warm_up_steps=2, steps=4)
    kinds = []

    for step in range(6):
        kinds.append(trial.dynamic)
        warming_up = 100.0 if step < 2 else 0.0
        assert trial.ended((dynamic_seconds if trial.dynamic else stock_seconds) + warming_up) == (step == 5)
    trial.decide(*trial.medians)

    assert kinds == [True, False] * 3
    assert trial.medians == (dynamic_seconds, stock_seconds)
    assert trial.dynamic == (dynamic_seconds <= stock_seconds)
    assert not trial.ended(0.0)
    assert trial.dynamic == (dynamic_seconds <= stock_seconds)


def test_without_a_trial_every_step_is_dynamic() -> None:
    trial = Trial(wanted=False)

    assert not any(trial.ended(1.0) for _ in range(100))
    assert trial.dynamic
