"""Waits in collectives, without comparing clocks: who comes last waits least, and the others wait for it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import Floats, Ints, StepTable
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
    late, would have waited less. Only communicators within one pipeline stage count, those of the same members as one,
    for the wait falls to whichever they come to first. nan: in no such one, or another of its members has not told
    either.
    """
    ranks, (cells, spent) = table.ranks, _spent(table)
    waited = np.full(len(ranks), np.nan)
    for groups in _by_members(table):
        members = _members(table, groups[0])
        if members is not None and (ranks.pipeline[members] == ranks.pipeline[members[0]]).all():
            cell = np.array(groups)[:, None] * len(ranks) + members
            place = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
            reported = cells[place] == cell
            seconds = np.where(reported, spent[place], 0.0).sum(axis=0)
            waited[members] = _least_of_others(np.where(reported.any(axis=0), seconds, np.nan))
    return waited


def _by_members(table: StepTable) -> list[list[int]]:
    """The communicators, those of the same members together; large ones first."""
    alike = defaultdict[frozenset[int], list[int]](list)
    for group, communicator in enumerate(table.communicators):
        alike[frozenset(communicator.ranks)].append(group)
    return sorted(alike.values(), key=lambda groups: -len(table.communicators[groups[0]].ranks))


def _members(table: StepTable, group: int) -> Ints | None:
    """Indices of a communicator's ranks; None where it has one alone, or one that is not known or named twice."""
    known, named = table.ranks.rank, np.sort(np.array(table.communicators[group].ranks, np.int64))
    places = np.searchsorted(known, named)
    if len(named) < 2 or places[-1] == len(known) or (known[places] != named).any() or (named[1:] == named[:-1]).any():
        return None
    return places


def _spent(table: StepTable) -> tuple[Ints, Floats]:
    """Seconds in collectives of each communicator and rank, which stand as one number; ascending, one at least."""
    rows = table.rows
    mine = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    if not mine.any():
        return np.full(1, -1), np.full(1, np.nan)
    cells, cell = np.unique(rows.communicator[mine] * len(table.ranks) + rows.rank[mine], return_inverse=True)
    spent: Floats = np.bincount(cell, rows.duration[mine]).astype(np.float64)
    return cells.astype(np.int64), spent


def _least_of_others(values: Floats) -> Floats:
    """For each value the least of the others; nan where one of them is."""
    unknown = np.isnan(values)
    filled = np.where(unknown, np.inf, values)
    least, second = np.partition(filled, 1)[:2]
    others_unknown = unknown.sum() - unknown
    return np.where(others_unknown > 0, np.nan, np.where(filled == least, second, least))
