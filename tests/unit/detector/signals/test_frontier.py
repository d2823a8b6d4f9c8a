"""Who holds everybody up, from frontiers alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.detector.signals.frontier import Frontier, Position, Side, blame

GROUP = {"dp:0-1": (0, 1), "dp:2-3": (2, 3), "p2p:0-2": (0, 2), "p2p:1-3": (1, 3)}


def test_a_rank_that_never_entered_is_blamed_on_its_host() -> None:
    frontiers = {0: {"dp:0-1": Position(7, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(6, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side, found.sequence, found.waiting) == (1, Side.HOST, 7, (0,))


def test_a_rank_whose_device_does_not_come_to_it_is_blamed_on_its_device() -> None:
    frontiers = {0: {"dp:0-1": Position(9, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(9, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side) == (1, Side.DEVICE)


def test_waiting_is_walked_back_over_p2p_to_the_first_blocker() -> None:
    frontiers = {
        0: {"p2p:0-2": Position(4, 4, 4), "dp:0-1": Position(2, 2, 2)},
        1: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        2: {"p2p:0-2": Position(5, 5, 4, "forward_recv"), "dp:2-3": Position(2, 2, 2)},
        3: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
    }

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.waiting) == (0, (1, 2, 3))


def test_two_ranks_that_stopped_are_both_named() -> None:
    frontiers = {
        0: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        1: {"dp:0-1": Position(2, 2, 2)},
        2: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
        3: {"dp:2-3": Position(2, 2, 2)},
    }

    assert [found.rank for found in blame(frontiers, GROUP)] == [1, 3]


def test_an_operation_that_all_are_in_is_the_networks() -> None:
    frontiers = {r: {"dp:0-1": Position(3, 3, 2, "all_reduce")} for r in (0, 1)}

    assert {found.side for found in blame(frontiers, GROUP)} == {Side.NETWORK}


A, B, C = ((12, MessageId(Direction.FORWARD, microbatch).pack()) for microbatch in range(3))
PAIR = {"p2p:0-1": (0, 1)}


def test_a_message_that_the_other_end_never_posted_is_told_from_one_that_is_there_by_its_name() -> None:
    """The sender is in B, the receiver posted A and C: by numbers both are in their second message."""
    frontiers = {
        0: {"p2p:0-1": Position(2, 2, 1, "forward_send", open=(B,))},
        1: {"p2p:0-1": Position(1, 1, 1)},
    }
    unnamed = {rank: {"p2p:0-1": f["p2p:0-1"]._replace(open=())} for rank, f in frontiers.items()}

    (found,) = blame(frontiers, PAIR)

    assert (found.rank, found.operation, found.message) == (1, "forward_recv", B)
    assert [b.rank for b in blame(unnamed, PAIR)] == [1]  # an older sender


def test_equal_numbers_do_not_hide_that_two_ends_wait_for_each_others_messages() -> None:
    frontiers = {
        0: {"p2p:0-1": Position(2, 2, 1, "forward_send", open=(B,)), "dp:0-1": Position(3, 3, 3)},
        1: {"p2p:0-1": Position(2, 2, 1, "forward_recv", open=(C,)), "dp:0-1": Position(3, 3, 3)},
        2: {"p2p:1-2": Position(1, 1, 0, "forward_recv", open=(A,))},
    }
    members = PAIR | {"p2p:1-2": (1, 2), "dp:0-1": (0, 1)}
    unnamed = {r: {c: p._replace(open=()) for c, p in f.items()} for r, f in frontiers.items()}

    # Rank 0 sends B, which rank 1 has not posted, and rank 1 waits for C: they wait for each other, and nobody else.
    assert {(b.side, b.circle) for b in blame(frontiers, members)} == {(Side.CIRCULAR, (0, 1))}
    assert [b.rank for b in blame(unnamed, members)] == [1]


WORLDS = {"dp:0-1": (0, 1), "tp:0-1": (0, 1), "p2p:0-1": (0, 1), "p2p:1-0": (1, 0), "dp:0-2": (0, 2)}
CROSSED = {
    0: {"dp:0-1": Position(3, 3, 2, "all_reduce"), "tp:0-1": Position(8, 8, 8)},
    1: {"dp:0-1": Position(2, 2, 2), "tp:0-1": Position(9, 9, 8, "all_gather")},
    2: {"dp:0-2": Position(4, 4, 3, "all_reduce")},
}
IN_THEM = {0: "all_reduce", 1: "all_gather", 2: "all_reduce"}


def sides(
    frontiers: Mapping[int, Frontier], activities: Mapping[int, str], idle: frozenset[int] = frozenset()
) -> set[tuple[Side, tuple[int, ...]]]:
    return {(b.side, b.circle) for b in blame(frontiers, WORLDS, idle, activities)}


def test_ranks_whose_threads_wait_in_collectives_of_different_order_are_in_a_deadlock() -> None:
    """Rank 2 waits for one of them, and is not in it."""
    found = blame(CROSSED, WORLDS, activities=IN_THEM)

    told = [(b.side, b.circle, b.waiting, b.rank, b.communicator, b.operation, b.sequence) for b in found]
    assert told == [
        (Side.DEADLOCK, (0, 1), (0,), 1, "dp:0-1", "all_reduce", 3),
        (Side.DEADLOCK, (0, 1), (1,), 0, "tp:0-1", "all_gather", 9),
    ]


def test_ranks_that_wait_for_each_others_messages_are_in_a_deadlock() -> None:
    """Both receive before they send."""
    frontiers = {
        0: {"p2p:1-0": Position(4, 4, 3, "backward_recv", 1, False, open=(A,))},
        1: {"p2p:0-1": Position(7, 7, 6, "forward_recv", 0, False, open=(B,))},
    }

    found = blame(frontiers, WORLDS, activities={0: "backward_recv", 1: "forward_recv"})

    assert [(b.side, b.rank, b.waiting, b.message) for b in found] == [
        (Side.DEADLOCK, 1, (0,), A),
        (Side.DEADLOCK, 0, (1,), B),
    ]


@pytest.mark.parametrize(
    "activities",
    [
        pytest.param({}, id="not told"),
        pytest.param(IN_THEM | {0: ""}, id="between two spans"),
        pytest.param(IN_THEM | {0: "data"}, id="it stands elsewhere, and the operation is asynchronous"),
    ],
)
def test_a_circle_in_which_a_thread_may_stand_elsewhere_is_no_deadlock(activities: dict[int, str]) -> None:
    assert sides(CROSSED, activities) == {(Side.CIRCULAR, (0, 1))}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"p2p:0-1": Position(4, 4, 3, "all_reduce")}, id="another of that name"),
        pytest.param({"dp:0-1": Position(5, 3, 2, "all_reduce")}, id="later ones of it outstanding"),
    ],
)
def test_which_operation_the_thread_waits_in_has_to_be_plain(more: dict[str, Position]) -> None:
    assert sides(CROSSED | {0: CROSSED[0] | more}, IN_THEM) == {(Side.CIRCULAR, (0, 1))}


def test_what_both_ends_have_posted_is_the_networks_also_where_threads_wait_in_it() -> None:
    frontiers = {
        0: {"p2p:0-1": Position(4, 4, 3, "forward_send", 1, True, open=(A,))},
        1: {"p2p:0-1": Position(4, 4, 3, "forward_recv", 0, False, open=(A,))},
    }

    assert sides(frontiers, {0: "forward_send", 1: "forward_recv"}) == {(Side.NETWORK, ())}


def test_a_rank_that_is_silent_is_in_no_deadlock() -> None:
    assert sides(CROSSED, IN_THEM, frozenset({1})) == {(Side.DEVICE, ())}


def test_who_alone_is_in_another_order_than_the_others_is_the_programs() -> None:
    """Rank 1 has gone into the second of two communicators of the same members before the first."""
    members = {"dp:0-1-2": (0, 1, 2), "opt:0-1-2": (0, 1, 2)}
    usual = {"dp:0-1-2": Position(5, 5, 4, "all_reduce"), "opt:0-1-2": Position(7, 7, 7)}
    other = {"dp:0-1-2": Position(4, 4, 4), "opt:0-1-2": Position(8, 8, 7, "reduce_scatter")}
    activities = {0: "all_reduce", 1: "reduce_scatter", 2: "all_reduce"}

    (found,) = blame({0: usual, 1: other, 2: usual}, members, activities=activities)

    assert (found.rank, found.side, found.waiting, found.circle) == (1, Side.PROGRAM, (0, 2), ())
    assert (found.operation, found.sequence, found.communicator) == ("reduce_scatter", 8, "opt:0-1-2")
    assert found.instead == "all_reduce as operation 5 of dp:0-1-2"


def of_pairs(world: int, culprit: int, first: str) -> dict[int, Frontier]:
    """Each rank reduces with all others (dp) and with one of them (edp); the culprit comes to the other one first.
    first: the one that comes first in the program."""
    inside = {"dp": Position(71, 71, 70, "all_reduce"), "edp": Position(36, 36, 35, "all_reduce")}
    before = {"dp": Position(70, 70, 70), "edp": Position(35, 35, 35)}
    through = {"dp": Position(71, 71, 71), "edp": Position(36, 36, 36)}
    second = "edp" if first == "dp" else "dp"
    everybody = "dp:" + "-".join(map(str, range(world)))
    frontiers: dict[int, Frontier] = {}
    for rank in range(world):
        pair = f"edp:{rank % (world // 2)}-{rank % (world // 2) + world // 2}"
        its = {"dp": everybody, "edp": pair}
        with_culprit = rank % (world // 2) == culprit % (world // 2)
        if rank == culprit:
            places = {first: before[first], second: inside[second]}
        elif first == "dp" or with_culprit:
            places = {first: inside[first], second: before[second]}
        else:
            places = {first: through[first], second: inside[second]}
        frontiers[rank] = {its[kind]: position for kind, position in places.items()}
    return frontiers


@pytest.mark.parametrize("world", [4, 64, 256])
@pytest.mark.parametrize("first", ["dp", "edp"])
def test_of_two_in_a_circle_the_others_tell_whose_order_is_wrong(world: int, first: str) -> None:
    """The one that skips or puts off what comes first waits for its peer in the other one, and its peer for it: that
    most wait in one of these says nothing."""
    frontiers = of_pairs(world, 1, first)
    members = {name: tuple(map(int, name.partition(":")[2].split("-"))) for own in frontiers.values() for name in own}

    (found,) = blame(frontiers, members, activities=dict.fromkeys(frontiers, "all_reduce"))

    assert (found.rank, found.side, found.circle) == (1, Side.PROGRAM, ())
    assert found.communicator.partition(":")[0] != first
    assert found.instead.startswith(f"all_reduce as operation {71 if first == 'dp' else 36} of {first}:")


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({}, "nobody else is there"),
        (
            {2: {"dp:0-1": Position(3, 3, 2), "dp:2-3": Position(3, 3, 2), "tp:2-3": Position(8, 8, 8)}},
            "several of a kind",
        ),
        ({2: {"dp:2-3": Position(3, 3, 2), "tp:2-3": Position(4, 4, 4)}}, "it calls fewer of these"),
        ({2: {"dp:2-3": Position(3, 3, 2), "tp:2-3": Position(9, 9, 8)}}, "it is in both"),
        ({2: {"dp:2-3": Position(3, 3, 3), "tp:2-3": Position(9, 9, 9)}}, "it is through both"),
        (
            {
                2: {"dp:2-3": Position(3, 3, 2), "tp:2-3": Position(8, 8, 8)},
                4: {"dp:4-5": Position(2, 2, 2), "tp:4-5": Position(9, 9, 8)},
            },
            "the others differ, too",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_of_two_in_a_circle_both_are_told_where_the_others_do_not_tell(
    others: Mapping[int, Frontier], why: str
) -> None:
    two = {rank: CROSSED[rank] for rank in (0, 1)}

    found = blame({**two, **others}, WORLDS, frozenset(others), IN_THEM)

    assert {(b.side, b.circle) for b in found} == {(Side.DEADLOCK, (0, 1))}, why


def test_a_message_on_its_way_is_the_networks() -> None:
    """The sender is done with all it had to send, the receiver has one of them open."""
    frontiers = {
        0: {"p2p:0-1": Position(5, 5, 5)},
        1: {"p2p:0-1": Position(5, 5, 3, "forward_recv", open=(B,))},
    }

    assert {(b.rank, b.side, b.message) for b in blame(frontiers, PAIR)} == {(1, Side.NETWORK, B)}


MANY = tuple((12, MessageId(Direction.FORWARD, microbatch).pack()) for microbatch in range(40))


def test_who_has_more_messages_open_than_it_names_waits_for_one_that_was_never_posted() -> None:
    """The receiver posts ahead in several lanes: of 60 messages 20 are open, the oldest of them behind 40 others, and
    the sender has sent 44."""
    ahead = Position(60, 41, 40, "forward_recv", open=MANY[:16], open_count=20)
    frontiers = {0: {"p2p:0-1": Position(44, 44, 44)}, 1: {"p2p:0-1": ahead}}

    (found,) = blame(frontiers, PAIR)

    assert (found.rank, found.side, found.operation, found.message) == (0, Side.HOST, "forward_send", MANY[4])


@given(st.data())
def test_messages_beyond_those_that_are_named_accuse_nobody_who_has_posted_them(data: st.DataObject) -> None:
    """Both ends have posted the same, in orders of their own, and name the first 16 each."""
    orders = [data.draw(st.permutations(MANY[:24])) for _ in range(2)]
    frontiers = {
        rank: {"p2p:0-1": Position(24, 1, 0, "forward_send", open=tuple(order[:16]), open_count=24)}
        for rank, order in enumerate(orders)
    }

    assert {b.side for b in blame(frontiers, PAIR)} == {Side.NETWORK}


def test_a_full_list_that_is_not_counted_is_compared_by_numbers() -> None:
    """Of an older agent: it may have been cut."""
    ahead = Position(60, 41, 40, "forward_recv", open=MANY[:16])

    (found,) = blame({0: {"p2p:0-1": Position(40, 40, 40)}, 1: {"p2p:0-1": ahead}}, PAIR)

    assert (found.rank, found.message, found.sequence) == (0, None, 41)


def test_the_oldest_message_may_be_on_its_way_while_a_later_one_was_never_posted() -> None:
    """A is sent and not known to have come, B stands posted at the receiver alone."""
    frontiers = {
        0: {"p2p:0-1": Position(1, 1, 1)},
        1: {"p2p:0-1": Position(2, 1, 0, "forward_recv", open=(A, B))},
    }

    assert [(b.rank, b.message) for b in blame(frontiers, PAIR)] == [(0, B)]


@given(
    orders=st.tuples(*[st.permutations(range(8))] * 2),
    through=st.sets(st.integers(0, 7), max_size=6),
    data=st.data(),
)
def test_whoever_did_not_post_a_message_is_blamed_in_whatever_order_the_others_were_posted_and_ended(
    orders: tuple[list[int], list[int]], through: set[int], data: st.DataObject
) -> None:
    """Of eight messages some are through; of the others one end posted one less than the other."""
    open_ = sorted(set(range(8)) - through)
    missing, idle = data.draw(st.sampled_from(open_)), data.draw(st.sampled_from([0, 1]))

    def position(rank: int) -> Position:
        posted = [m for m in orders[rank] if rank != idle or m != missing]
        names = tuple((3, MessageId(Direction.FORWARD, m).pack()) for m in posted if m not in through)
        completed = next((n for n, m in enumerate(posted) if m not in through), len(posted))
        return Position(len(posted), len(posted), completed, "forward", open=names)

    (found, *others) = blame({rank: {"p2p:0-1": position(rank)} for rank in (0, 1)}, PAIR)

    assert (found.rank, found.message, others) == (idle, (3, MessageId(Direction.FORWARD, missing).pack()), [])
