"""Waits in collectives, without comparing clocks: who comes last waits least, and the others wait for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import Floats, StepTable
from megatronapp.v1 import trace_pb2


def waited_for(table: StepTable, delayed: npt.NDArray[np.bool_]) -> Floats:
    """Seconds of this step that the other members of a rank's communicators waited longer than the rank itself.

    Only communicators within one pipeline stage count, whose members have the same work and none of whom is delayed by
    a rank that has not told of the step: else that one may be whom they waited for. nan: in no such one.
    """
    rows, n = table.rows, len(table.ranks)
    mine = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    group, rank, seconds = rows.communicator[mine], rows.rank[mine], rows.duration[mine]
    if not len(group):
        return np.full(n, np.nan)
    cells, cell = np.unique(group * n + rank, return_inverse=True)
    spent = np.bincount(cell, seconds)
    group, rank = cells // n, cells % n
    groups = len(table.communicators)
    members = np.bincount(group, minlength=groups)
    stage = table.ranks.pipeline[rank].astype(np.float64)
    first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(first, group, stage)
    np.maximum.at(last, group, stage)
    in_time = set(table.ranks.rank[~delayed].tolist())
    whole = np.array([in_time.issuperset(each.ranks) for each in table.communicators])
    judged = (members > 1) & (first == last) & whole
    others = (np.bincount(group, spent, minlength=groups)[group] - spent) / np.maximum(members[group] - 1, 1)
    used = judged[group]
    waited = np.bincount(rank[used], (others - spent)[used], minlength=n)
    return np.where(np.bincount(rank[used], minlength=n) > 0, waited, np.nan)


def waited_for_untold(table: StepTable) -> Floats:
    """Seconds of this step that all others of a rank's smallest communicator have waited at least, one entry a rank.

    Of a rank that has not told of the step it is what is known of its lateness: one of those who told, had they been
    late, would have waited less. Only communicators within one pipeline stage count. nan: in no such one, or another of
    its members has not told either.
    """
    ranks, spent = table.ranks, _spent(table)
    waited = np.full(len(ranks), np.nan)
    by_size = sorted(range(len(table.communicators)), key=lambda each: -len(table.communicators[each].ranks))
    for group in by_size:
        members = np.flatnonzero(np.isin(ranks.rank, table.communicators[group].ranks))
        whole = len(members) == len(table.communicators[group].ranks) > 1
        if whole and len(np.unique(ranks.pipeline[members])) == 1:
            waited[members] = _least_of_others(
                np.array([spent.get((group, rank), np.nan) for rank in members.tolist()])
            )
    return waited


def _spent(table: StepTable) -> dict[tuple[int, int], float]:
    """Seconds in collectives of each communicator and rank (indices)."""
    rows = table.rows
    mine = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    n = len(table.ranks)
    cells, cell = np.unique(rows.communicator[mine] * n + rows.rank[mine], return_inverse=True)
    seconds = np.bincount(cell, rows.duration[mine])
    return {(int(c) // n, int(c) % n): float(s) for c, s in zip(cells, seconds, strict=True)}


def _least_of_others(values: Floats) -> Floats:
    """For each value the least of the others; nan where one of them is."""
    unknown = np.isnan(values)
    filled = np.where(unknown, np.inf, values)
    least, second = np.partition(filled, 1)[:2]
    others_unknown = unknown.sum() - unknown
    return np.where(others_unknown > 0, np.nan, np.where(filled == least, second, least))
