"""What slow ranks cost the job: the step replayed with them over the step replayed without."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from megatronapp.detector.steps import Floats, Ints, StepTable
from megatronapp.detector.whatif.replay import step_seconds
from megatronapp.detector.whatif.schedule import GRAD_SYNC, OPTIMIZER, Compute, schedule_graph
from megatronapp.v1 import trace_pb2


def cost_ratio(table: StepTable, effect_by_rank: Mapping[int, float]) -> float:
    """The job's step time with the slow ranks ÷ without them, one device per rank supposed.

    effect_by_rank: global rank → its compute time ÷ the expected (1.2 = 20 % slower). Every rank's expected time is its
    stage's typical one, so that neither noise nor another fault hides or inflates the cost. 1.0 when nothing is slow
    or the table tells of no compute. Raises ValueError when a ratio is not a positive number.
    """
    effects = np.array([effect_by_rank.get(int(rank), 1.0) for rank in table.ranks.rank], dtype=np.float64)
    if not ((effects > 0) & np.isfinite(effects)).all():
        raise ValueError("an effect ratio must be a positive number")
    if (effects == 1.0).all():
        return 1.0
    stages, chunks = int(table.ranks.pipeline.max()) + 1, max(1, table.virtual_stages)
    graph = schedule_graph(stages, chunks, max(1, table.microbatches))
    slower = _slowest_of_each_worker(table, effects, stages)
    in_pass, at_end = _transfers(table, stages)
    seconds = np.zeros((len(graph), *slower.shape[1:]))
    typical: dict[tuple[str, int], Floats] = {}
    for index, operation in enumerate(graph.operations):
        assert isinstance(operation, Compute)  # noqa: S101  # what schedule_graph promises
        name, stage = operation.operation, operation.stage
        if name == GRAD_SYNC:
            seconds[index] = at_end[stage]
            continue
        if (name, operation.chunk) not in typical:
            typical[name, operation.chunk] = _typical_seconds(table, name, operation.chunk, effects, stages)
        transfer = 0.0 if name == OPTIMIZER else in_pass[stage]
        seconds[index] = typical[name, operation.chunk][stage] * slower[stage] + transfer
    slow, healthy = step_seconds(graph, seconds)
    return float(slow / healthy) if healthy > 0 else 1.0


def _slowest_of_each_worker(table: StepTable, effects: Floats, stages: int) -> Floats:
    """(stages, 2, replicas): the effect with the slow ranks, then without; only replicas that hold one.

    Ranks of one worker wait for each other in every layer, so the slowest sets its pace.
    """
    ranks = table.ranks
    replicas, replica = np.unique(ranks.data[effects != 1.0], return_inverse=True)
    slower = np.ones((stages, 2, len(replicas)))
    for stage, column, effect in zip(ranks.pipeline[effects != 1.0], replica, effects[effects != 1.0], strict=True):
        known = slower[stage, 0, column]
        slower[stage, 0, column] = effect if known == 1.0 else max(known, effect)
    return slower


def _typical_seconds(table: StepTable, operation: str, chunk: int, effects: Floats, stages: int) -> Floats:
    """(stages,): median over a stage's ranks of one such operation's compute seconds, their effects taken away."""
    rows, ranks, typical = table.rows, table.ranks, np.zeros(stages)
    if operation not in table.operations:
        return typical
    mine = (rows.operation == table.operations.index(operation)) & (rows.count > 0)
    mine &= (rows.chunk == chunk) | ((rows.chunk < 0) & (chunk == 0))
    rank = rows.rank[mine]
    measured = np.where(ranks.on_cpu[rank], rows.cpu[mine], rows.duration[mine]) / rows.count[mine]
    for stage in range(stages):
        here = ranks.pipeline[rank] == stage
        if here.any():
            typical[stage] = np.median((measured / effects[rank])[here])
    return typical


def _transfers(table: StepTable, stages: int) -> tuple[Floats, Floats]:
    """(stages,) each: seconds of collectives within one microbatch's pass, and of those at the step's end.

    The member that waits least tells a collective's own time. Collectives among the ranks of one worker belong to the
    passes, evenly; all others come once, after the last backward.
    """
    rows, ranks = table.rows, table.ranks
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
        in_pass[stage], at_end[stage] = np.median(per_rank[0][here]) / passes, np.median(per_rank[1][here])
    return in_pass, at_end


def _least(group: Ints, values: Floats | Ints) -> Floats:
    """Smallest value of each group."""
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, values)
    return least
