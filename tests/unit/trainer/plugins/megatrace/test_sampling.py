"""How much is recorded where the agent does not come after."""

from __future__ import annotations

from megatronapp.trainer.plugins.megatrace.sampling import STEPS, Sampling


def levels(sampling: Sampling, lost: list[int]) -> list[int]:
    found = []
    for each in lost:
        sampling.step(each)
        found.append(sampling.level)
    return found


def test_while_nothing_is_lost_all_is_recorded() -> None:
    assert levels(Sampling([1, 2, 3]), [0] * 1000) == [3] * 1000


def test_each_loss_lowers_the_level_as_far_as_the_calls() -> None:
    assert levels(Sampling([1, 2, 3]), [0, 5, 9, 12, 20]) == [3, 2, 1, 1, 1]


def test_after_a_while_without_loss_more_is_asked_for_again() -> None:
    found = levels(Sampling([1, 2, 3]), [5] * (STEPS + 2))

    assert found[:STEPS] == [2] * STEPS
    assert found[-1] == 3


def test_what_was_too_much_again_is_asked_for_less_often() -> None:
    sampling = Sampling([1, 2])
    levels(sampling, [5] * (STEPS + 1))

    found = levels(sampling, [6] * 4 * STEPS)

    assert found.index(2) == 2 * STEPS


def test_an_agent_that_follows_another_begins_to_count_anew() -> None:
    assert levels(Sampling([1, 2, 3]), [5, 0, 0, 1]) == [2, 2, 2, 1]
