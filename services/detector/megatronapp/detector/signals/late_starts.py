"""Who begins last, operation by operation, without comparing clocks: of a collective that ends together at all members
the last to begin takes the least time, and the others as much longer as they wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from megatronapp.detector.signals.nccl import Joined, Ranks
from megatronapp.detector.signals.nccl_operations import NS, Sent
from megatronapp.detector.steps import Ints, RankTable

KEPT_STEPS = 4
"""A member's word waits so long for the others'."""
MOST_KEPT = 1 << 18


class LateStart(NamedTuple):
    """Who was the last in one operation."""

    communicator: int
    """NCCL's hash."""
    number: int
    rank: int
    seconds: float
    """By which it began after the median of the others."""
    operations: int
    """How many it stands for."""


HASH, NUMBER, PLACE, DURATION, WEIGHT, AGE = range(6)
"""Of a member's word on an operation: its communicator's hash as it lies in 64 bits with a sign, the number, the
member's place, its nanoseconds, how many operations it stands for, and steps since it came."""


class LateStarts:
    """Puts the members' words together, which may come with different steps."""

    def __init__(self) -> None:
        self._kept: Ints = np.zeros((AGE + 1, 0), np.int64)

    def of(self, sent: Sent, known: Mapping[int, Joined]) -> list[LateStart]:
        """Of operations of which the last member has told now."""
        self._kept[AGE] += 1
        words = np.concatenate([self._kept, _words(sent)], axis=1)
        words = words[:, np.lexsort((words[DURATION], words[NUMBER], words[HASH]))]
        if not words.shape[1]:
            return []
        begins = np.flatnonzero(np.r_[True, (words[HASH, 1:] != words[HASH, :-1]) | (np.diff(words[NUMBER]) != 0)])
        counts = np.diff(np.r_[begins, words.shape[1]])
        members = {_signed(hash_): (hash_, each.ranks) for hash_, each in known.items()}
        sizes = np.array([len(members.get(each, (0, ()))[1]) for each in words[HASH, begins].tolist()], np.int64)
        whole = (counts == sizes) & (sizes > 1)
        left = np.flatnonzero(~np.repeat(whole, counts) & (words[AGE] < KEPT_STEPS))
        self._kept = words[:, left[:MOST_KEPT]]
        return _found(words, begins[whole], counts[whole], members)


def waited_for(starts: list[LateStart], known: Mapping[int, Joined], ranks: RankTable) -> dict[int, float]:
    """Seconds that the others waited for each rank, of those of which something was told. Only communicators within a
    stage count: members of others have unequal work."""
    stage = dict(zip(ranks.rank.tolist(), ranks.pipeline.tolist(), strict=True))
    sent = {start.communicator for start in starts}
    within = {hash_ for hash_ in sent if len({stage.get(rank, -1) for rank in known[hash_].ranks}) == 1}
    waited = {rank: 0.0 for hash_ in within for rank in known[hash_].ranks}
    for start in starts:
        if start.communicator in within:
            waited[start.rank] += start.seconds * start.operations
    return waited


def _found(words: Ints, begins: Ints, counts: Ints, members: Mapping[int, tuple[int, Ranks]]) -> list[LateStart]:
    """Of operations of which all members have told; words of one are ascending by duration."""
    if not len(begins):
        return []
    took = words[DURATION]
    median = (took[begins + counts // 2] + took[begins + (counts + 1) // 2]) / 2
    late = np.maximum(median - took[begins], 0) * NS
    found = zip(words[:AGE, begins].T.tolist(), late.tolist(), strict=True)
    starts = ((members[hash_], number, place, weight, seconds) for (hash_, number, place, _, weight), seconds in found)
    return [
        LateStart(hash_, number, ranks[place], seconds, weight)
        for (hash_, ranks), number, place, weight, seconds in starts
        if place < len(ranks)
    ]


def _words(sent: Sent) -> Ints:
    columns: tuple[list[int], ...] = tuple([] for _ in range(AGE))
    for _, tallies in sent:
        for tally in tallies:
            if count := len(tally.numbers):
                columns[HASH].extend([_signed(tally.seat.hash)] * count)
                columns[NUMBER].extend(tally.numbers)
                columns[PLACE].extend([tally.seat.place] * count)
                columns[DURATION].extend(tally.durations_ns)
                columns[WEIGHT].extend([max(1, round(tally.count / count))] * count)
    return np.array([*columns, [0] * len(columns[HASH])], np.int64)


def _signed(hash_: int) -> int:
    return hash_ - (1 << 64) if hash_ >> 63 else hash_
