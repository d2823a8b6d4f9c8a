"""Experts: how unequal the work is that the router gives to the ranks of an expert-parallel group.

A rank sends its own tokens in one all-to-all and gets them back by another, in which it sends those that its experts
were given; backward does the same the other way round. So the bytes that it sends tell both.
"""

from __future__ import annotations

import numpy as np

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.steps import Floats, StepTable

GROUPS = ("ep", "expert_tp_ep")


def load(table: StepTable) -> Floats:
    """Tokens that each rank's experts were given ÷ the mean of its group; 1 where that is not known, as without
    experts or where they are dispatched by all-gather."""
    known = np.ones(len(table.ranks))
    for group, sent in _sent_bytes(table).items():
        members = np.flatnonzero(np.isin(table.ranks.rank, table.communicators[group].ranks))
        if np.all(sent[members] > 0):
            own = _tokens(table)[members]
            share = own / own.mean() if np.all(own > 0) else np.ones(len(members))
            known[members] = np.maximum(2 * sent[members] / sent[members].mean() - share, 0.0)
    return known


def _sent_bytes(table: StepTable) -> dict[int, Floats]:
    """Of each expert-parallel communicator, one entry a rank."""
    if SpanName.ALL_TO_ALL not in table.operations:
        return {}
    rows = table.rows
    mine = (rows.operation == table.operations.index(SpanName.ALL_TO_ALL)) & (rows.communicator >= 0)
    groups = [g for g in np.unique(rows.communicator[mine]).tolist() if table.communicators[g].kind in GROUPS]
    return {g: _by_rank(table, mine & (rows.communicator == g), rows.bytes) for g in groups}


def _tokens(table: StepTable) -> Floats:
    if SpanName.FORWARD not in table.operations:
        return np.zeros(len(table.ranks))
    return _by_rank(table, table.rows.operation == table.operations.index(SpanName.FORWARD), table.rows.tokens)


def _by_rank(table: StepTable, rows: np.ndarray, values: Floats) -> Floats:
    summed: Floats = np.bincount(table.rows.rank[rows], values[rows], len(table.ranks)).astype(np.float64)
    return summed
