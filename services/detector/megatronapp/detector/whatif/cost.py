"""What slow ranks cost the job: the step replayed with them over the step replayed without."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from megatronapp.detector.steps import Floats, Ints, StepTable
from megatronapp.detector.whatif.replay import step_seconds
from megatronapp.detector.whatif.schedule import Compute, schedule_graph

OPERATIONS = ("forward", "backward", "optimizer")


def cost_ratio(table: StepTable, effect_by_rank: Mapping[int, float]) -> float:
    """The job's step time with the slow ranks ÷ without them, one device per rank supposed.

    effect_by_rank: global rank → its compute time ÷ the expected (1.2 = 20 % slower). 1.0 when nothing is slow, or the
    table tells of no compute.
    """
    effects = np.array([effect_by_rank.get(int(rank), 1.0) for rank in table.ranks.rank])
    if not (effects > 0).all():
        raise ValueError("an effect ratio must be positive")
    if (effects == 1.0).all():
        return 1.0
    stages, chunks = int(table.ranks.pipeline.max()) + 1, max(1, table.virtual_stages)
    graph = schedule_graph(stages, chunks, max(1, table.microbatches))
    workers = {
        (operation, chunk): _per_worker(table, _mean_seconds(table, operation, chunk), effects, stages)
        for operation in OPERATIONS
        for chunk in range(chunks)
    }
    nothing = np.zeros_like(workers["optimizer", 0][:, 0])
    durations = np.stack(
        [
            workers[op.operation, op.chunk][:, op.stage] if op.operation in OPERATIONS else nothing
            for op in graph.operations
            if isinstance(op, Compute)
        ]
    )
    slow, healthy = step_seconds(graph, durations)
    return float(slow / healthy) if healthy > 0 else 1.0


def _mean_seconds(table: StepTable, operation: str, chunk: int) -> Floats:
    """Mean compute seconds of one such operation on each rank, nan where the rank reported none."""
    rows, seconds = table.rows, np.full(len(table.ranks), np.nan)
    if operation not in table.operations:
        return seconds
    mine = (rows.operation == table.operations.index(operation)) & (rows.count > 0)
    mine &= (rows.chunk == chunk) | ((rows.chunk < 0) & (chunk == 0))
    rank = rows.rank[mine]
    measured = np.where(table.ranks.on_cpu[rank], rows.cpu[mine], rows.duration[mine])
    total = np.bincount(rank, measured, minlength=len(seconds))
    count = np.bincount(rank, rows.count[mine], minlength=len(seconds))
    np.divide(total, count, out=seconds, where=count > 0)
    return seconds


def _per_worker(table: StepTable, seconds: Floats, effects: Floats, stages: int) -> Floats:
    """(2, stages, replicas): the slowest rank of each worker, as measured and with its effect taken away.

    A worker that reported nothing takes its stage's median.
    """
    replicas, replica = np.unique(table.ranks.data, return_inverse=True)
    workers = np.full((2, stages, len(replicas)), -np.inf)
    known = ~np.isnan(seconds)
    where: tuple[Ints, Ints] = (table.ranks.pipeline[known], replica[known])
    for scenario, scale in enumerate((np.ones_like(effects), effects)):
        np.maximum.at(workers[scenario], where, (seconds / scale)[known])
    for stage in workers.reshape(-1, len(replicas)):
        reported = stage > -np.inf
        stage[~reported] = np.median(stage[reported]) if reported.any() else 0.0
    return workers
