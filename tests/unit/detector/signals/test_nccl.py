"""Communicators of NCCL, of which each member knows its own place alone, are joined with the job's groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.detector.signals.nccl import Joined, Seat, joined

WORLD = 8
RANKS = st.sets(st.integers(0, WORLD - 1), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
HASHES = st.integers(0, 2**64 - 1)
COMMUNICATORS = st.dictionaries(HASHES, RANKS, max_size=8)


def seats_of(communicators: dict[int, tuple[int, ...]]) -> dict[int, list[Seat]]:
    """What each rank is told, each in its own order."""
    seats: dict[int, list[Seat]] = {}
    for hash_, ranks in communicators.items():
        for place, rank in enumerate(ranks):
            seats.setdefault(rank, []).insert(place % 2, Seat(hash_, len(ranks), place))
    return seats


def named(kind: str, ranks: tuple[int, ...]) -> str:
    return f"{kind}:{'-'.join(map(str, ranks))}"


@given(COMMUNICATORS)
def test_the_members_of_each_are_found_and_no_two_have_one_name(communicators: dict[int, tuple[int, ...]]) -> None:
    groups = {named("dp", ranks): ranks for ranks in communicators.values()}

    found = joined(seats_of(communicators), groups)

    assert {hash_: each.ranks for hash_, each in found.items()} == communicators
    assert len({each.id for each in found.values()}) == len(found)


@given(COMMUNICATORS)
def test_one_communicator_of_one_groups_members_is_that_group(communicators: dict[int, tuple[int, ...]]) -> None:
    alone = {hash_: ranks for hash_, ranks in communicators.items() if list(communicators.values()).count(ranks) == 1}
    groups = {named("tp", ranks): ranks for ranks in communicators.values()}

    found = joined(seats_of(communicators), groups)

    assert {hash_ for hash_, each in found.items() if each.is_group} == alone.keys()
    assert all(found[hash_].id == named("tp", ranks) for hash_, ranks in alone.items())


@given(COMMUNICATORS.filter(len), st.data())
def test_who_has_not_told_its_place_leaves_the_communicator_out(
    communicators: dict[int, tuple[int, ...]], data: st.DataObject
) -> None:
    lacking = data.draw(st.sampled_from(sorted(communicators)))
    silent = data.draw(st.sampled_from(communicators[lacking]))
    seats = seats_of(communicators)
    seats[silent] = [seat for seat in seats[silent] if seat.hash != lacking]

    assert joined(seats, {}).keys() == communicators.keys() - {lacking}


def test_what_contradicts_itself_is_joined_with_nobody() -> None:
    contradictions: list[dict[int, list[Seat]]] = [
        {0: [Seat(7, 2, 0)], 1: [Seat(7, 2, 0)]},
        {0: [Seat(7, 2, 0), Seat(7, 2, 1)]},
        {0: [Seat(7, 2, 0)], 1: [Seat(7, 3, 1)]},
        {0: [Seat(7, 2, 0)], 1: [Seat(7, 2, 5)]},
        {0: [Seat(7, 2, 0)], 1: [Seat(7, 2, 1)], 2: [Seat(7, 2, 1)]},
        {0: [Seat(7, 1, 0)]},
    ]

    assert [joined(seats, {"dp:0-1": (0, 1)}) for seats in contradictions] == [{}] * len(contradictions)


def test_what_the_device_does_not_tell_of_stays_with_the_hooks() -> None:
    seats = {0: [Seat(7, 2, 0, timed=False)], 1: [Seat(7, 2, 1)]}

    assert joined(seats, {"dp:0-1": (0, 1)}) == {}


def test_groups_of_the_same_members_and_those_of_gloo_are_told_apart() -> None:
    seats = seats_of({7: (0, 1)})

    assert joined(seats, {"dp:0-1": (0, 1), "tp:0-1": (0, 1)}) == {7: Joined("nccl:0-1", (0, 1), False)}
    assert joined(seats, {"dp:0-1": (0, 1), "dp_gloo:0-1": (0, 1)}) == {7: Joined("dp:0-1", (0, 1), True)}


def test_a_group_whose_ranks_were_given_in_another_order_is_found_by_its_members() -> None:
    seats = {3: [Seat(7, 2, 0)], 1: [Seat(7, 2, 1)]}

    assert joined(seats, {"dp:1-3": (1, 3)}) == {7: Joined("dp:1-3", (3, 1), True)}
