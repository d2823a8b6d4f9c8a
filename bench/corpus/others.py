"""The rules of others, rebuilt from their descriptions (papers, documentation): what they would name in the same
recording. They look at it when it is over.

- MegaScan: a pass of more than 1.1 times the mean of the data-parallel peers', or an all-reduce of less than 0.9 times,
  is a hit; who has more than five, and waits less in more than two of five of its reductions, is abnormal. One at most.
- Megatrace: of the ranks of a stage the slowest, by the mean time of its passes; of a job that stands the first call
  that is missing: the ranks that have made the fewest in any communicator.
- NVRx: the score of a rank's passes is the best rank's median over its own; below 0.75 it is slow. Of a job that
  stands: the members that are missing in the operation that others of their group are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench.corpus.case import Case
from bench.scale.record import step_tables
from megatronapp.core.trace.span_names import PASSES, SYMMETRIC
from megatronapp.detector.formats.tracefolder import Attempt
from megatronapp.detector.steps import Floats, StepTable
from megatronapp.v1 import trace_pb2

HIT, SHORT, HITS, SHARE = 1.1, 0.9, 5, 0.4
SCORE = 0.75
Ranks = frozenset[int]
Rule = Callable[[Sequence[StepTable], Sequence[trace_pb2.RankMessage]], Ranks]
"""Of the steps, and the last heartbeat of each rank of a job that stands."""


def name(case: Case, rule: Rule) -> Ranks:
    tables = [table for table in step_tables(case.attempt) if not table.phases and len(table.rows)]
    return rule(tables, last_heartbeats(case.attempt))


def last_heartbeats(attempt: Attempt) -> list[trace_pb2.RankMessage]:
    newest: dict[int, trace_pb2.RankMessage] = {}
    for message in attempt.messages():
        if message.message.HasField("heartbeat"):
            newest[message.identity.rank] = message
    return list(newest.values())


def megascan(tables: Sequence[StepTable], _beats: Sequence[trace_pb2.RankMessage]) -> Ranks:
    if not tables:
        return frozenset()
    backward, reduce = _series(tables, ("backward",)), _series(tables, tuple(SYMMETRIC))
    suspects: list[tuple[float, int]] = []
    for rank, others in enumerate(_peers(tables[0])):
        if not len(others):
            continue
        longer = backward[:, rank] > HIT * backward[:, others].mean(axis=1)
        shorter = reduce[:, rank] < SHORT * reduce[:, others].mean(axis=1)
        if longer.sum() + shorter.sum() > HITS and shorter.mean() > SHARE:
            suspects.append((float(shorter.mean()), int(tables[0].ranks.rank[rank])))
    return frozenset({max(suspects)[1]}) if suspects else frozenset()


def megatrace(tables: Sequence[StepTable], beats: Sequence[trace_pb2.RankMessage]) -> Ranks:
    if beats:
        return _fewest(beats)
    if not tables:
        return frozenset()
    seconds = _series(tables, tuple(PASSES)).mean(axis=0)
    lateness = [
        seconds[rank] / seconds[others].mean() if len(others) else 0.0 for rank, others in enumerate(_peers(tables[0]))
    ]
    return frozenset({int(tables[0].ranks.rank[int(np.argmax(lateness))])})


def nvrx(tables: Sequence[StepTable], beats: Sequence[trace_pb2.RankMessage]) -> Ranks:
    if beats:
        return _missing(beats)
    if not tables:
        return frozenset()
    seconds = np.median(_series(tables, tuple(PASSES)), axis=0)
    slow = np.flatnonzero(seconds.min() / seconds < SCORE)
    return frozenset(int(tables[0].ranks.rank[each]) for each in slow)


RULES: dict[str, Rule] = {"MegaScan": megascan, "Megatrace": megatrace, "NVRx-like": nvrx}


def _series(tables: Sequence[StepTable], operations: tuple[str, ...]) -> Floats:
    """(steps, ranks): what the operations took, of steps that all ranks told of."""
    world = max(len(table.ranks) for table in tables)
    rows = [_of_step(table, operations) for table in tables if len(table.ranks) == world]
    return np.stack(rows)


def _of_step(table: StepTable, operations: tuple[str, ...]) -> Floats:
    wanted = [number for number, each in enumerate(table.operations) if each in operations]
    mine = np.isin(table.rows.operation, wanted)
    return np.bincount(table.rows.rank[mine], table.rows.duration[mine], len(table.ranks)).astype(np.float64)


def _peers(table: StepTable) -> list[np.ndarray]:
    """Of each rank the others of its stage and tensor place."""
    ranks = table.ranks
    alike = (ranks.pipeline[:, None] == ranks.pipeline) & (ranks.tensor[:, None] == ranks.tensor)
    np.fill_diagonal(alike, False)
    return [np.flatnonzero(row) for row in alike]


def _calls(beats: Sequence[trace_pb2.RankMessage]) -> dict[tuple[int, ...], dict[int, int]]:
    """By the members of each communicator: how many operations each has called."""
    members: dict[tuple[int, int], tuple[int, ...]] = {}
    found: dict[tuple[int, ...], dict[int, int]] = {}
    for beat in beats:
        rank = beat.identity.rank
        for each in beat.message.heartbeat.communicators:
            members[rank, each.index] = tuple(each.ranks)
        for frontier in beat.message.heartbeat.frontiers:
            ranks = members.get((rank, frontier.communicator), (frontier.communicator,))
            found.setdefault(ranks, {})[rank] = frontier.enqueued
    return found


def _fewest(beats: Sequence[trace_pb2.RankMessage]) -> Ranks:
    """Those behind in the communicator in which somebody is behind the most."""
    behind = {ranks: max(calls.values()) - min(calls.values()) for ranks, calls in _calls(beats).items()}
    if not behind or not max(behind.values()):
        return frozenset()
    calls = _calls(beats)[max(behind, key=lambda ranks: behind[ranks])]
    return frozenset(rank for rank, count in calls.items() if count == min(calls.values()))


def _missing(beats: Sequence[trace_pb2.RankMessage]) -> Ranks:
    return frozenset(
        rank for calls in _calls(beats).values() for rank, count in calls.items() if count < max(calls.values())
    )
