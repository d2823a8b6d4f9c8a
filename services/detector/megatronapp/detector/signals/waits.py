"""Waits in collectives, without comparing clocks: who comes last waits least, and the others wait for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.compute import ComputeEffect
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


def computed_longer(table: StepTable, effect: ComputeEffect) -> Floats:
    """Seconds that each device computed longer than its median peer, fewer than none if it was faster: for so long the
    others wait for a reason that is measured, whether it is one that devices usually have or not. 0 where compute is
    processor time, or not known."""
    longer = -np.expm1(-effect.beside_peers) * effect.seconds
    known: Floats = np.where(np.isfinite(longer) & ~table.ranks.on_cpu, longer, 0.0)
    return known


def waited_for_untold(table: StepTable) -> Floats:
    """Seconds of this step that all others of a rank's smallest communicator have waited at least, one entry a rank.

    Of a rank that has not told of the step it is what is known of its lateness: one of those who told, had they been
    late, would have waited less. Only communicators within one pipeline stage count, those of the same members as one,
    for the wait falls to whichever they come to first. nan: in no such one, or another of its members has not told
    either.
    """
    n, (alike, number) = len(table.ranks), _alike(table)
    cells, spent = _spent(table, number)
    waited = np.full(n, np.nan)
    for size in sorted({len(each) for each in alike if len(each) > 1}, reverse=True):
        of_size = [place for place, each in enumerate(alike) if len(each) == size]
        members, of_one_stage = _members(table, [alike[place] for place in of_size])
        cell = np.array(of_size)[of_one_stage, None] * n + members
        place = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
        waited[members] = _least_of_others(np.where(cells[place] == cell, spent[place], np.nan))
    return waited


def _alike(table: StepTable) -> tuple[list[frozenset[int]], Ints]:
    """The members of the communicators, each set once, and of each communicator which of them it has."""
    numbers = dict[frozenset[int], int]()
    number = [numbers.setdefault(frozenset(each.ranks), len(numbers)) for each in table.communicators]
    return list(numbers), np.array(number, np.int64)


def _members(table: StepTable, alike: list[frozenset[int]]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Indices of the ranks of sets of one size, for those that stand in one pipeline stage, and which these are. Of a
    rank that is not known no stage is either."""
    known, named = table.ranks.rank, np.sort(np.array([list(each) for each in alike], np.int64), axis=1)
    places = np.minimum(np.searchsorted(known, named), len(known) - 1)
    stage = table.ranks.pipeline[places]
    used = (known[places] == named).all(axis=1) & (stage == stage[:, :1]).all(axis=1)
    return places[used], used


def _spent(table: StepTable, number: Ints) -> tuple[Ints, Floats]:
    """Seconds in collectives of each set of members and rank, which stand as one number; ascending, one at least.
    number: of each communicator, its set."""
    rows = table.rows
    mine = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    if not mine.any():
        return np.full(1, -1), np.full(1, np.nan)
    cells, cell = np.unique(number[rows.communicator[mine]] * len(table.ranks) + rows.rank[mine], return_inverse=True)
    spent: Floats = np.bincount(cell, rows.duration[mine]).astype(np.float64)
    return cells.astype(np.int64), spent


def _least_of_others(values: Floats) -> Floats:
    """For each value the least of the others in its row; nan where one of them is."""
    unknown = np.isnan(values)
    filled = np.where(unknown, np.inf, values)
    ordered = np.partition(filled, 1, axis=1)
    least, second = ordered[:, :1], ordered[:, 1:2]
    others_unknown = unknown.sum(axis=1, keepdims=True) - unknown
    return np.where(others_unknown > 0, np.nan, np.where(filled == least, second, least))
