"""Which operations belong together: collectives by communicator and sequence number, messages by what they are; never
by a guess. Pure functions.

A key that contradicts itself (one rank twice with different times, members that name different operations, a sender
without its receiver) is left out, not repaired.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.columns import Column

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows that are one collective. `rows[i]` belongs to collective `group[i]`; groups count from 0, rows of one group
    stand together, ordered by member."""

    rows: Ints
    group: Ints

    @property
    def count(self) -> int:
        return int(self.group[-1]) + 1 if len(self.group) else 0


@dataclass(frozen=True, slots=True)
class Edges:
    """Matched messages: row `source[i]` sent what row `target[i]` received."""

    source: Ints
    target: Ints


def match_collectives(communicator: Column, sequence: Column, operation: Column, rank: Column) -> Groups:
    """Groups of two or more members. All arguments are integer columns of one length.

    Rows with sequence 0 match nothing. A row that stands twice word for word (same key, operation and rank) makes its
    group ambiguous unless the caller dropped the repetition; ambiguous groups are left out.
    """
    rows = np.flatnonzero(np.asarray(sequence, np.int64) > 0)
    order = rows[np.lexsort((rank[rows], sequence[rows], communicator[rows]))]
    if not len(order):
        return _no_groups()
    group = _runs(communicator[order], sequence[order])
    size = np.bincount(group)
    same_rank = (np.diff(group) == 0) & (np.diff(rank[order].astype(np.int64)) == 0)
    mixed = (np.diff(group) == 0) & (np.diff(operation[order].astype(np.int64)) != 0)
    bad = np.zeros(len(size), bool)
    bad[group[1:][same_rank | mixed]] = True
    keep = (~bad & (size >= 2))[group]
    return Groups(order[keep], _renumber(group[keep]))


def match_messages(
    direction: Column,
    sender: Column,
    receiver: Column,
    sequence: Column,
    is_send: npt.NDArray[np.bool_],
    message: Column,
) -> Edges:
    """Pairs of the send and the receive of one message; the rows are of one step.

    Where both ends name the message (`message`, core/trace/message_id.py) it is that of the same name between the same
    ranks, in whatever order it was posted. Where one does not (0), it is that of the same direction and number. A key
    that does not have exactly one send and one receive matches nothing.
    """
    between = (np.asarray(sender, np.int64) >= 0) & (np.asarray(receiver, np.int64) >= 0)
    message = np.asarray(message, np.int64)
    by_name = _pairs(between & (message > 0), is_send, message, receiver, sender, direction)
    left = between & (np.asarray(sequence, np.int64) > 0)
    left[by_name.source] = left[by_name.target] = False
    by_number = _pairs(left, is_send, sequence, receiver, sender, direction)
    unnamed = (message[by_number.source] == 0) | (message[by_number.target] == 0)
    return Edges(np.r_[by_name.source, by_number.source[unnamed]], np.r_[by_name.target, by_number.target[unnamed]])


def _pairs(chosen: npt.NDArray[np.bool_], is_send: npt.NDArray[np.bool_], *keys: Column) -> Edges:
    """Of the rows chosen: those keys that one send and one receive have, and no other row."""
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((~is_send[rows], *(key[rows] for key in keys)))]
    if not len(order):
        return Edges(_empty(), _empty())
    group = _runs(*(key[order] for key in keys))
    size = np.bincount(group)
    sends = np.bincount(group, weights=is_send[order].astype(np.float64))
    first = np.flatnonzero(np.r_[True, np.diff(group) > 0])
    pairs = first[(size == 2) & (sends == 1)]
    return Edges(order[pairs], order[pairs + 1])


def _runs(*keys: Column) -> Ints:
    """Number of the run of equal keys that each row of sorted columns belongs to, from 0."""
    new = np.zeros(len(keys[0]), bool)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.cumsum(new).astype(np.int64)


def _renumber(group: Ints) -> Ints:
    return _runs(group) if len(group) else group


def _empty() -> Ints:
    return np.empty(0, np.int64)


def _no_groups() -> Groups:
    return Groups(_empty(), _empty())
