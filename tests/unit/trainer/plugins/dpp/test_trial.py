"""The trial of stock against the hint as it is and against choices."""

import pytest

from megatronapp.trainer.plugins.dpp.trial import DYNAMIC, PLANNED, STOCK, Trial

KINDS = (DYNAMIC, PLANNED, STOCK)


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [((1.0, 2.0, 3.0), DYNAMIC), ((3.0, 1.0, 2.0), PLANNED), ((3.0, 2.0, 1.0), STOCK), ((1.0, 1.0, 1.0), DYNAMIC)],
)
def test_steps_run_in_turns_and_then_as_the_fastest_kind(seconds: tuple[float, ...], fastest: str) -> None:
    trial = Trial(KINDS, warm_up_steps=1, steps=2)
    took = dict(zip(KINDS, seconds, strict=True))
    ran = []

    for step in range(9):
        ran.append(trial.kind)
        warming_up = 100.0 if step < 3 else 0.0
        assert trial.ended(took[trial.kind] + warming_up) == (step == 8)
    medians = trial.medians
    trial.decide(medians)

    assert ran == [*KINDS] * 3
    assert medians == [*seconds]
    assert trial.kind == fastest
    assert not trial.ended(0.0)
    assert trial.kind == fastest


def test_without_a_trial_every_step_is_dynamic() -> None:
    trial = Trial()

    assert not any(trial.ended(1.0) for _ in range(100))
    assert trial.kind == DYNAMIC
