"""What a StepTable tells of the times that a replay needs."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats, Ints, StepTable
from megatronapp.detector.whatif.schedule import WGRAD
from megatronapp.v1 import trace_pb2


def stage_count(table: StepTable) -> int:
    return int(table.ranks.pipeline.max()) + 1


def is_split(table: StepTable) -> bool:
    """Whether the gradients of weights were computed apart from backward."""
    if WGRAD not in table.operations:
        return False
    of_wgrad = table.rows.operation == table.operations.index(WGRAD)
    return bool((table.rows.count[of_wgrad] > 0).any())


def compute_seconds(table: StepTable, operation: str, chunk: int) -> Floats:
    """(ranks,): mean compute seconds of one such operation, nan where a rank reported none."""
    rows, ranks = table.rows, len(table.ranks)
    if operation not in table.operations:
        return np.full(ranks, np.nan)
    mine = (rows.operation == table.operations.index(operation)) & (rows.count > 0)
    mine &= (rows.chunk == chunk) | ((rows.chunk < 0) & (chunk == 0))
    rank = rows.rank[mine]
    measured = np.where(table.ranks.on_cpu[rank], rows.cpu[mine], rows.duration[mine])
    total = np.bincount(rank, measured, minlength=ranks)
    count = np.bincount(rank, rows.count[mine], minlength=ranks)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def transfer_seconds(table: StepTable) -> tuple[Floats, Floats]:
    """(stages,) each: seconds of collectives within one microbatch's pass, and of those at the step's end.

    The member that waits least tells a collective's own time. Collectives among the ranks of one worker belong to the
    passes, evenly; all others come once, after the last backward.
    """
    rows, ranks, stages = table.rows, table.ranks, stage_count(table)
    in_pass, at_end = np.zeros(stages), np.zeros(stages)
    mine = (table.kinds[rows.operation] == trace_pb2.SPAN_KIND_COLLECTIVE) & (rows.communicator >= 0)
    if not mine.any():
        return in_pass, at_end
    rank = rows.rank[mine]
    _, group = np.unique(rows.communicator[mine] * len(table.operations) + rows.operation[mine], return_inverse=True)
    own = _least(group, rows.duration[mine])[group]
    worker = ranks.pipeline[rank] * (int(ranks.data.max()) + 1) + ranks.data[rank]
    within = (_least(group, worker) == -_least(group, -worker))[group]
    passes = 2 * max(1, table.microbatches) * max(1, table.virtual_stages)
    per_rank = [np.bincount(rank[part], own[part], minlength=len(ranks)) for part in (within, ~within)]
    for stage in range(stages):
        here = ranks.pipeline == stage
        if here.any():
            in_pass[stage], at_end[stage] = np.median(per_rank[0][here]) / passes, np.median(per_rank[1][here])
    return in_pass, at_end


def _least(group: Ints, values: Floats | Ints) -> Floats:
    """Smallest value of each group."""
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, values)
    return least
