"""Matching under whatever the way from the rank may do to its rows: reordering, loss, repetition, any clock."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector.depend import Edges, match_collectives, match_messages

COLLECTIVES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2), st.integers(0, 3)), max_size=60
)
"""(communicator, sequence, operation, rank)"""
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.booleans(), st.integers(0, 3)
    ),
    max_size=60,
)
"""(direction, sender, receiver, sequence, is send, message)"""


def columns(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, width).T)


@given(rows=COLLECTIVES)
def test_collectives_match_exactly_where_no_key_contradicts_itself(rows: list[tuple[int, int, int, int]]) -> None:
    groups = match_collectives(*columns(rows, 4))

    expected = defaultdict(list)
    for index, (communicator, sequence, operation, rank) in enumerate(rows):
        expected[communicator, sequence].append((rank, operation, index))
    whole = {
        frozenset(index for _, _, index in members)
        for members in expected.values()
        if len(members) > 1 and len({r for r, _, _ in members}) == len(members) and len({o for _, o, _ in members}) == 1
    }
    found = defaultdict(set)
    for row, group in zip(groups.rows.tolist(), groups.group.tolist(), strict=True):
        found[group].add(row)
    assert {frozenset(members) for members in found.values()} == whole
    assert groups.count == len(whole)


@given(rows=COLLECTIVES, seed=st.integers(0, 100))
def test_the_order_of_arrival_does_not_matter(rows: list[tuple[int, int, int, int]], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))

    straight = match_collectives(*columns(rows, 4))
    shuffled = match_collectives(*columns([rows[index] for index in order], 4))

    assert _keys(rows, straight.rows) == _keys([rows[index] for index in order], shuffled.rows)


def _keys(rows: list[tuple[int, int, int, int]], chosen: np.ndarray) -> list[tuple[int, int, int, int]]:
    return sorted(rows[index] for index in chosen)


@given(rows=COLLECTIVES, lost=st.sets(st.integers(0, 59)))
def test_losing_rows_never_makes_a_wrong_match(rows: list[tuple[int, int, int, int]], lost: set[int]) -> None:
    kept = [row for index, row in enumerate(rows) if index not in lost]

    groups = match_collectives(*columns(kept, 4))

    for number in range(groups.count):
        members = [kept[index] for index in groups.rows[groups.group == number]]
        assert len({member[:3] for member in members}) == 1
        assert len({member[3] for member in members}) == len(members)


def test_operations_without_a_number_match_nothing() -> None:
    assert match_collectives(*columns([(1, 0, 0, 0), (1, 0, 0, 1)], 4)).count == 0


def matched(rows: list[tuple[int, ...]]) -> Edges:
    direction, sender, receiver, sequence, is_send, message = columns(rows, 6)
    return match_messages(direction, sender, receiver, sequence, is_send.astype(bool), message)


@given(rows=MESSAGES)
def test_messages_without_names_match_one_send_with_one_receive_of_the_same_number(
    rows: list[tuple[int, int, int, int, bool, int]],
) -> None:
    edges = matched([(*row[:5], 0) for row in rows])

    expected = defaultdict(list)
    for index, row in enumerate(rows):
        expected[row[:4]].append((row[4], index))
    assert set(zip(edges.source.tolist(), edges.target.tolist(), strict=True)) == _one_of_each(expected)


@given(rows=MESSAGES)
def test_messages_with_names_match_by_these_alone(rows: list[tuple[int, int, int, int, bool, int]]) -> None:
    named = [(*row[:5], row[5] + 1) for row in rows]

    edges = matched(named)

    expected = defaultdict(list)
    for index, row in enumerate(named):
        expected[(*row[:3], row[5])].append((row[4], index))
    assert set(zip(edges.source.tolist(), edges.target.tolist(), strict=True)) == _one_of_each(expected)


def _one_of_each(members: dict[tuple[int, ...], list[tuple[bool, int]]]) -> set[tuple[int, int]]:
    """(send, receive) of the keys that have one of each and nothing else."""
    return {
        (next(i for s, i in found if s), next(i for s, i in found if not s))
        for found in members.values()
        if sorted(s for s, _ in found) == [False, True]
    }


@given(rows=MESSAGES)
def test_what_is_matched_never_contradicts_itself(rows: list[tuple[int, int, int, int, bool, int]]) -> None:
    edges = matched(rows)

    ends = [*edges.source.tolist(), *edges.target.tolist()]
    assert len(set(ends)) == len(ends)
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        send, receive = rows[source], rows[target]
        assert (send[:3], send[4], receive[4]) == (receive[:3], True, False)
        both_named = send[5] and receive[5]
        assert send[5] == receive[5] if both_named else send[3] == receive[3]


def test_a_named_end_and_an_older_sender_are_matched_by_number() -> None:
    assert len(matched([(0, 0, 1, 7, True, 5), (0, 0, 1, 7, False, 0)]).source) == 1


def test_a_message_without_a_known_peer_matches_nothing() -> None:
    assert not len(matched([(0, 0, -1, 1, True, 1), (0, -1, 0, 1, False, 1)]).source)


ORDERS, ON_THE_WAY = 100_000, 6


def test_messages_posted_in_a_hundred_thousand_random_orders_are_never_matched_crosswise() -> None:
    """Each pair of ranks is an order of its own: both ends post the step's messages in a random order, and number them
    by posting, each for itself."""
    random = np.random.default_rng(14)
    names = np.tile(np.arange(ON_THE_WAY) + 1, (2 * ORDERS, 1))
    posted = random.permuted(names, axis=1)
    number = np.tile(np.arange(ON_THE_WAY) + 1, (2 * ORDERS, 1))
    pair = np.repeat(np.arange(ORDERS), ON_THE_WAY)
    rows = {
        "direction": np.zeros(posted.size, np.int64),
        "sender": np.tile(2 * pair, 2),
        "receiver": np.tile(2 * pair + 1, 2),
        "sequence": number.ravel(),
        "is_send": np.arange(posted.size) < posted.size // 2,
        "message": posted.ravel(),
    }
    arrived = random.permutation(posted.size)
    rows = {name: column[arrived] for name, column in rows.items()}

    by_name = match_messages(**rows)
    by_number = match_messages(**rows | {"message": np.zeros(posted.size, np.int64)})

    assert len(by_name.source) == len(by_number.source) == ORDERS * ON_THE_WAY
    assert _wrong(rows, by_name) == 0
    assert _wrong(rows, by_number) > ORDERS  # what the order of posting makes of it


def _wrong(rows: dict[str, np.ndarray], edges: Edges) -> int:
    return int((rows["message"][edges.source] != rows["message"][edges.target]).sum())
