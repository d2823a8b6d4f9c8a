"""Which of several ranks runs its operations in another order than the others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.signals.frontier import Blame, Frontier, Position, Side, blame
from megatronapp.detector.signals.order import Place, Whereabouts, differ, place
from tests.support.out_of_order import Job

JOBS = 1000
ALONE_SHARE = 0.8
"""Of those that stand. In the others nobody but two ranks runs a stage, or nobody else has come far enough to tell."""
FORWARD = (37, MessageId(Direction.FORWARD, 0).pack())


def through(number: int, at: int) -> Position:
    return Position(number, number, number, "all_reduce", enqueued_at_ns=at)


def within(number: int, at: int) -> Position:
    return Position(number, number, number - 1, "all_reduce", enqueued_at_ns=at)


def named(frontiers: Mapping[int, Frontier], whereabouts: Mapping[int, Whereabouts]) -> list[Blame]:
    """Each thread is in the operation that its rank is in."""
    members = {
        name: tuple(map(int, name.partition(":")[2].split("-"))) for frontier in frontiers.values() for name in frontier
    }
    activities = {
        rank: next((position.operation for position in frontier.values() if position.inside), "")
        for rank, frontier in frontiers.items()
    }
    return blame(frontiers, members, activities=activities, whereabouts=whereabouts)


def at(frontier: Frontier, step: int = 1, stage: int = 0) -> Place:
    return place(frontier, Whereabouts(step, stage=stage))


def test_in_random_jobs_who_is_out_of_order_is_always_named_and_mostly_alone() -> None:
    stuck = [standing for seed in range(JOBS) if (standing := Job(seed).run())]

    found = [each.named() for each in stuck]

    assert [each for each, ranks in zip(stuck, found, strict=True) if each.culprit not in ranks] == []
    assert sum(len(ranks) == 1 for ranks in found) > ALONE_SHARE * len(found)
    assert max(map(len, found)) == 2


def test_in_a_long_circle_who_left_an_operation_out_is_told_by_its_peer_and_who_waits_for_it() -> None:
    """Pipeline 2, data 2: rank 1 has not entered embd 37. The last stage has a dp operation more in each step."""
    frontiers = {
        0: {"embd:0-2": through(37, 2), "dp:0-1": through(144, 1), "opt:0-1-2-3": within(36, 3)},
        1: {"embd:1-3": through(36, 1), "dp:0-1": through(144, 2), "opt:0-1-2-3": within(36, 3)},
        2: {"embd:0-2": through(37, 2), "dp:2-3": within(180, 3), "opt:0-1-2-3": through(35, 1)},
        3: {"embd:1-3": within(37, 3), "dp:2-3": through(179, 2), "opt:0-1-2-3": through(35, 1)},
    }

    (found,) = named(frontiers, {rank: Whereabouts(36, stage=rank // 2) for rank in frontiers})

    assert (found.rank, found.side, found.communicator) == (1, Side.PROGRAM, "opt:0-1-2-3")
    assert found.instead == "all_reduce as operation 37 of embd:1-3"


def test_of_a_long_circle_those_are_suspected_of_whom_one_is_out_of_order() -> None:
    """The only two ranks of a stage differ: nobody else runs what they run."""
    frontiers = {
        0: {"embd:0-2": through(37, 2), "dp:0-1": through(35, 1), "mp:0-2": within(36, 3)},
        1: {"embd:1-3": through(36, 1), "dp:0-1": within(36, 3), "mp:1-3": through(35, 2)},
        2: {"embd:0-2": through(37, 2), "dp:2-3": within(72, 3), "mp:0-2": through(35, 1)},
        3: {"embd:1-3": within(37, 3), "dp:2-3": through(71, 2), "mp:1-3": through(35, 1)},
    }

    found = named(frontiers, {rank: Whereabouts(36, stage=rank // 2) for rank in frontiers})

    assert {(b.side, b.circle, b.suspects) for b in found} == {(Side.DEADLOCK, (0, 1, 2, 3), (0, 1))}


@pytest.mark.parametrize(("step", "ranks"), [(37, {1}), (36, {0, 1})])
def test_who_is_a_step_further_has_left_out_what_others_wait_for_it_in(step: int, ranks: set[int]) -> None:
    """A pipeline: rank 1 waits for a message, and all others wait for rank 1."""
    everybody = "mp:0-1-2-3"
    waits = Position(5, 5, 4, "forward_recv", 0, open=(FORWARD,), enqueued_at_ns=4)
    frontiers: dict[int, Frontier] = {rank: {everybody: within(36, 3)} for rank in (0, 2, 3)}
    frontiers[1] = {everybody: through(35, 1), "p2p:0-1": waits}

    found = named(frontiers, {rank: Whereabouts(step if rank == 1 else 36, stage=rank) for rank in frontiers})

    assert {b.rank for b in found} == ranks
    if len(ranks) == 1:
        assert (found[0].side, found[0].operation, found[0].message) == (Side.PROGRAM, "forward_recv", FORWARD)


ONE = {"dp:0-1": through(4, 1), "mp:0-2": within(7, 2)}


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        pytest.param(
            at({"dp:0-1": within(5, 2), "mp:1-3": through(6, 1)}), True, id="ahead in one, behind in the other"
        ),
        pytest.param(at({"dp:0-1": through(4, 1), "mp:1-3": through(6, 2)}), False, id="behind"),
        pytest.param(
            at({"dp:0-1": within(5, 2), "mp:1-3": through(6, 1)}, stage=1), False, id="another stage's number"
        ),
        pytest.param(at({"dp:0-1": within(5, 2), "mp:1-3": through(4, 1)}), False, id="numbers far apart"),
        pytest.param(at({"dp:0-1": within(5, 2), "mp:0-2": through(4, 1)}, stage=1), True, id="one communicator"),
        pytest.param(at({"dp:0-1": within(5, 2)}, step=0), True, id="an earlier step"),
        pytest.param(at({"dp:0-1": within(5, 2)}), False, id="the same step"),
        pytest.param(place({"dp:0-1": within(5, 2)}, Whereabouts(0, "other")), False, id="another role's step"),
    ],
)
def test_two_ranks_differ_where_they_have_entered_operations_in_opposite_orders(other: Place, *, differs: bool) -> None:
    assert differ(at(ONE), other) is differs
    assert differ(other, at(ONE)) is differs


def test_of_newest_operations_that_are_equally_far_the_times_tell_the_order() -> None:
    other = {"dp:0-1": through(4, 3), "mp:0-2": through(7, 2)}

    assert differ(at(ONE), at(other))
    assert not differ(at(ONE), at({**other, "dp:0-1": through(4, 1)}))
