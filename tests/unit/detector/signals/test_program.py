"""Members of a communicator that call different operations under one number."""

from __future__ import annotations

import pytest

from megatronapp.detector.signals.frontier import Position, Side
from megatronapp.detector.signals.program import Called, calls_of, disagreements

REDUCE, GATHER = Called("AllReduce", 8, "bf16"), Called("AllGather", 8, "bf16")


def named(*members: list[Called]) -> dict[int, tuple[int, str]]:
    """Rank: the number, and what the others call."""
    calls = {"tp": {rank: dict(enumerate(own, 1)) for rank, own in enumerate(members)}}
    blamed = disagreements(calls)
    assert {each.side for each in blamed} <= {Side.PROGRAM}
    return {each.rank: (each.sequence, each.instead) for each in blamed}


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_who_is_only_behind_calls_nothing_else(behind):
    whole = [REDUCE, GATHER, REDUCE]

    assert named(whole, whole, whole[:behind]) == {}


def test_who_skips_an_operation_is_named_at_the_first_that_differs():
    usual = [REDUCE, GATHER, REDUCE]

    assert named(usual, usual, [REDUCE, REDUCE]) == {2: (2, "AllGather of 8 bf16")}


@pytest.mark.parametrize("other", [GATHER, REDUCE._replace(elements=9), REDUCE._replace(type="f32")])
def test_another_operation_size_or_type_differs(other):
    assert named([REDUCE], [other], [REDUCE]) == {1: (1, "AllReduce of 8 bf16")}


def test_another_root_differs():
    one, other = Called("Broadcast", 1, "i8", 0), Called("Broadcast", 1, "i8", 2)

    assert named([one], [one], [other]) == {2: (1, "Broadcast of 1 i8 from rank 0")}


OTHER_SIZE = REDUCE._replace(elements=16)


def after(world: int, culprit: int, called: Called, *, ended: bool = False) -> list[tuple[int, int, str]]:
    """Rank, number and what others call, where all others are through what one is in, and wait for it elsewhere."""
    through = {"dp": Position(108, 108, 108, called=REDUCE), "opt": Position(36, 36, 35, called=GATHER)}
    inside = {
        "dp": Position(108, 108, 108 if ended else 107, called=called),
        "opt": Position(35, 35, 35, called=GATHER),
    }
    frontiers = {rank: inside if rank == culprit else through for rank in range(world)}
    return [(each.rank, each.sequence, each.instead) for each in disagreements(calls_of(frontiers))]


@pytest.mark.parametrize("world", [4, 64, 1024])
def test_who_is_in_what_others_are_through_is_named_where_these_called_it_otherwise(world):
    assert after(world, 2, OTHER_SIZE) == [(2, 108, "AllReduce of 8 bf16")]


def test_who_is_in_what_others_are_through_and_called_alike_calls_nothing_else():
    assert after(64, 2, REDUCE) == []


def test_what_all_are_through_accuses_nobody():
    assert after(64, 2, OTHER_SIZE, ended=True) == []


def test_of_two_neither_is_right_alone():
    assert named([REDUCE], [GATHER]) == {0: (1, "AllGather of 8 bf16"), 1: (1, "AllReduce of 8 bf16")}


@pytest.mark.parametrize(
    ("members", "circle"),
    [
        ([REDUCE, GATHER], (0, 1)),
        ([REDUCE, REDUCE, GATHER, GATHER], (0, 1, 2, 3)),
        ([REDUCE, REDUCE, GATHER], ()),
    ],
)
def test_where_nobody_can_tell_who_is_right_all_are_in_one_event(
    members: list[Called], circle: tuple[int, ...]
) -> None:
    blamed = disagreements({"tp": {rank: {1: called} for rank, called in enumerate(members)}})

    assert {each.circle for each in blamed} == {circle}


def test_of_members_who_may_still_tell_only_most_of_all_are_right():
    told = {"tp": {1: {5: GATHER}, 2: {5: REDUCE}, 3: {5: REDUCE}}}

    assert disagreements(told, {"tp": range(4)}) == []
    assert [each.rank for each in disagreements({"tp": told["tp"] | {0: {5: REDUCE}}}, {"tp": range(4)})] == [1]
    assert [each.rank for each in disagreements(told, {"tp": range(1, 4)})] == [1]


def test_what_is_not_known_is_no_difference():
    assert named([REDUCE], [Called("AllReduce")], [REDUCE]) == {}


def test_what_ranks_are_in_is_compared_where_they_tell_how_they_called_it():
    ended = {"tp": Position(4, 4, 4, called=GATHER)}
    frontiers = {0: {"tp": Position(5, 5, 4, called=REDUCE)}, 1: {"tp": Position(5, 5, 4)}, 2: ended}

    assert calls_of(frontiers) == {"tp": {0: {5: REDUCE}}}
