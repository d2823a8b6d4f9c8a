"""Which phase a rank's heartbeats tell of, from its start to its steps."""

from __future__ import annotations

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.plugins.scan.position import Position


def test_a_rank_is_starting_until_its_first_step_is_over() -> None:
    position = Position()
    assert position.phase is Phase.START

    position.leave(Phase.START)

    assert position.phase is Phase.STEP


def test_the_innermost_phase_is_told_and_after_it_the_one_around_it() -> None:
    position = Position(())
    told = []
    for enter, phase in (
        (True, Phase.EVALUATION),
        (True, Phase.CHECKPOINT),
        (False, Phase.CHECKPOINT),
        (False, Phase.EVALUATION),
    ):
        (position.enter if enter else position.leave)(phase)
        told.append(position.phase)

    assert told == [Phase.EVALUATION, Phase.CHECKPOINT, Phase.EVALUATION, Phase.STEP]


def test_a_phase_that_ends_takes_along_what_was_entered_in_it() -> None:
    position = Position(())
    for phase in (Phase.PAUSE, Phase.CHECKPOINT):
        position.enter(phase)

    position.leave(Phase.PAUSE)

    assert position.phase is Phase.STEP


def test_a_phase_that_was_never_entered_is_left_alone() -> None:
    position = Position()

    position.leave(Phase.EVALUATION)

    assert position.phase is Phase.START
