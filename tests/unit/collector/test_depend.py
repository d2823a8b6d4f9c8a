"""Matching under whatever the way from the rank may do to its rows: reordering, loss, repetition, any clock."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.collector.depend import match_collectives, match_messages

COLLECTIVES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2), st.integers(0, 3)), max_size=60
)
"""(communicator, sequence, operation, rank)"""
MESSAGES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=60
)
"""(direction, sender, receiver, sequence, is send)"""


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


@given(rows=MESSAGES)
def test_messages_match_one_send_with_one_receive_of_the_same_key(
    rows: list[tuple[int, int, int, int, bool]],
) -> None:
    direction, sender, receiver, sequence, is_send = columns(rows, 5)

    edges = match_messages(direction, sender, receiver, sequence, is_send.astype(bool))

    expected = defaultdict(list)
    for index, row in enumerate(rows):
        expected[row[:4]].append((row[4], index))
    pairs = {
        (next(i for s, i in found if s), next(i for s, i in found if not s))
        for found in expected.values()
        if sorted(s for s, _ in found) == [False, True]
    }
    assert set(zip(edges.source.tolist(), edges.target.tolist(), strict=True)) == pairs


def test_a_message_without_a_known_peer_matches_nothing() -> None:
    direction, sender, receiver, sequence, is_send = columns([(0, 0, -1, 1, True), (0, -1, 0, 1, False)], 5)

    assert not len(match_messages(direction, sender, receiver, sequence, is_send.astype(bool)).source)
