"""Waits in collectives, without comparing clocks: who comes last waits least, and the others wait for it."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats, StepTable
from megatronapp.v1 import trace_pb2


def waited_for(table: StepTable) -> Floats:
    """Seconds of this step that the other members of a rank's communicators waited longer than the rank itself.

    Only communicators within one pipeline stage count, whose members have the same work and all told of the step: else
    one that did not may be whom they waited for. nan: in no such one.
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
    present = set(table.ranks.rank.tolist()).difference(table.missing)
    whole = np.array([present.issuperset(each.ranks) for each in table.communicators])
    judged = (members > 1) & (first == last) & whole
    others = (np.bincount(group, spent, minlength=groups)[group] - spent) / np.maximum(members[group] - 1, 1)
    used = judged[group]
    waited = np.bincount(rank[used], (others - spent)[used], minlength=n)
    return np.where(np.bincount(rank[used], minlength=n) > 0, waited, np.nan)
