"""What slow ranks, and unequal work, cost the job: the step replayed with them over the step replayed without.

Here a step is replayed from its summary and its schedule, so this works online and without aligned clocks. Where stages
chose their order (MegaDPP) it is the one that they ran. Where W is split and no summary tells it, as of an older
trainer, it is the one that they take when all messages come in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from megatronapp.core.pipeline.placement import Layout
from megatronapp.detector.steps import Floats, StepTable
from megatronapp.detector.whatif.replay import step_seconds
from megatronapp.detector.whatif.schedule import (
    BACKWARD,
    FORWARD,
    GRAD_SYNC,
    OPTIMIZER,
    WGRAD,
    recorded_graph,
    schedule_graph,
)
from megatronapp.detector.whatif.table import compute_seconds, is_split, stage_count, transfer_seconds

PASSES = (FORWARD, BACKWARD)
"""What takes part in a stage's collectives and messages."""


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
    pace = _pace(table, effects)

    def seconds(operation: str, chunk: int) -> Floats:
        return pace * _by_stage(table, compute_seconds(table, operation, chunk) / effects, np.median)[:, None, None]

    return _ratio(table, seconds)


def slowdown_ratio(table: StepTable) -> float:
    """The step as its workers computed ÷ the step with every forward, backward and optimizer at its mean time.

    The rule of whatif.equalise at the resolution of a step's summary: microbatches of one worker count as equal.
    1.0 when the table tells of no compute.
    """

    def seconds(operation: str, chunk: int) -> Floats:
        of_ranks = compute_seconds(table, operation, chunk)
        if np.isnan(of_ranks).all():
            return np.zeros((stage_count(table), 2, 1))
        everywhere = [compute_seconds(table, operation, each) for each in range(max(1, table.virtual_stages))]
        measured = _by_worker(table, of_ranks)
        return np.stack([measured, np.full_like(measured, np.nanmean(everywhere))], axis=1)

    return _ratio(table, seconds)


def _ratio(table: StepTable, seconds: Callable[[str, int], Floats]) -> float:
    """Replay both scenarios; seconds(operation, chunk): (stages, 2 scenarios, replicas) for one operation."""
    chunks = max(1, table.virtual_stages)
    split = is_split(table)
    layout = Layout(stages=stage_count(table), chunks=chunks, microbatches=max(1, table.microbatches), split=split)
    graph = recorded_graph(layout, table.orders) or schedule_graph(layout.stages, chunks, layout.microbatches, split)
    computes = (*PASSES, WGRAD) if split else PASSES
    of = {(name, chunk): seconds(name, chunk) for name in computes for chunk in range(chunks)}
    of[OPTIMIZER, 0] = seconds(OPTIMIZER, 0)
    shape = np.broadcast_shapes(*(one.shape for one in of.values()))
    in_pass, at_end = transfer_seconds(table)
    durations = np.zeros((len(graph), *shape[1:]))
    for index, operation in enumerate(graph.operations):
        name, stage, chunk, _ = operation
        if name in PASSES:
            durations[index] = of[name, chunk][stage] + in_pass[stage]
        else:
            durations[index] = at_end[stage] if name == GRAD_SYNC else of[name, chunk][stage]
    first, second = step_seconds(graph, durations)
    return float(first / second) if second > 0 else 1.0


def _pace(table: StepTable, effects: Floats) -> Floats:
    """(stages, 2, replicas): how slow each worker is with the slow ranks, and without; only replicas that hold one.

    Ranks of one worker wait for each other in every layer, so the slowest sets its pace.
    """
    replicas = np.unique(table.ranks.data[effects != 1.0])
    here = np.isin(table.ranks.data, replicas)
    worst = np.zeros((stage_count(table), len(replicas)))
    place = (table.ranks.pipeline[here], np.searchsorted(replicas, table.ranks.data[here]))
    np.maximum.at(worst, place, effects[here])
    with_slow = np.where(worst > 0, worst, 1.0)
    return np.stack([with_slow, np.ones_like(with_slow)], axis=1)


def _by_stage(table: StepTable, of_ranks: Floats, typical: Callable[[Floats], float]) -> Floats:
    """(stages,): the typical value of a stage's ranks, 0 where none is known."""
    known = ~np.isnan(of_ranks)
    return np.array(
        [
            typical(of_ranks[here]) if (here := known & (table.ranks.pipeline == stage)).any() else 0.0
            for stage in range(stage_count(table))
        ]
    )


def _by_worker(table: StepTable, of_ranks: Floats) -> Floats:
    """(stages, replicas): the slowest rank of each worker; its stage's median where a worker reported nothing."""
    replicas, replica = np.unique(table.ranks.data, return_inverse=True)
    workers = np.full((stage_count(table), len(replicas)), -np.inf)
    known = ~np.isnan(of_ranks)
    np.maximum.at(workers, (table.ranks.pipeline[known], replica[known]), of_ranks[known])
    return np.where(np.isfinite(workers), workers, _by_stage(table, of_ranks, np.median)[:, None])
