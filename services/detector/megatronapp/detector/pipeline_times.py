"""What a step's summary tells of its pipeline: how long its stages compute nothing, and what choosing takes."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np

from megatronapp.core.pipeline.caps import stock_cap
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.steps import Floats, Ints, StepTable

PASSES = frozenset((SpanName.FORWARD, SpanName.BACKWARD, SpanName.WGRAD))
AROUND = frozenset((SpanName.DATA, SpanName.GRAD_SYNC, SpanName.OPTIMIZER))
"""What a step has beside its pipeline."""
DECIDE = frozenset((SpanName.DECIDE,))
MAX_MICROBATCHES = 1 << 16
"""x chunks, of a stage: what a sender may make this process count through."""


def bubble_ratio(table: StepTable) -> float | None:
    """The share of the pipeline's time in which a stage computes no forward, backward or W: the mean over ranks.

    The pipeline's time is the step without data, gradient sync and optimizer. None without a pipeline, in a step of a
    phase that no other has (the first one, an evaluation, a checkpoint), and where nothing was computed.
    """
    if table.phases or not len(table.ranks) or int(table.ranks.pipeline.max()) == 0:
        return None
    passes, around = _seconds(table, PASSES), _seconds(table, AROUND)
    pipeline = table.duration - around
    known = (passes > 0) & (pipeline > 0)
    if not known.any():
        return None
    return float(np.mean(np.clip(1 - passes[known] / pipeline[known], 0.0, 1.0)))


def decision_seconds(table: StepTable) -> float | None:
    """Mean time in which a stage looks what has come and chooses its next operation, of the rank where it is longest.
    None where no stage chooses."""
    seconds, counts = _seconds(table, DECIDE), _counts(table, DECIDE)
    chose = counts > 0
    return float(np.max(seconds[chose] / counts[chose])) if chose.any() else None


def stock_peak_activations(table: StepTable) -> int | None:
    """What megatron-core's schedule for the table's layout holds at most on a stage, in chunks × microbatches: the
    default cap of MegaDPP. None without a pipeline and for absurd sizes."""
    stages = int(table.ranks.stage.max(initial=0)) + 1
    if stages == 1:
        return None
    return _stock_peak(stages, table.virtual_stages, table.microbatches)


@lru_cache(maxsize=64)
def _stock_peak(stages: int, chunks: int, microbatches: int) -> int | None:
    if max(stages, chunks * microbatches) > MAX_MICROBATCHES:
        return None
    return stock_cap(Layout(stages=stages, chunks=chunks, microbatches=microbatches))


def _seconds(table: StepTable, names: Collection[str]) -> Floats:
    """(ranks,): of spans of these names together."""
    return by_rank(table, names, table.rows.duration)


def _counts(table: StepTable, names: Collection[str]) -> Floats:
    return by_rank(table, names, table.rows.count)


def by_rank(table: StepTable, names: Collection[str], values: Floats | Ints) -> Floats:
    """(ranks,): the sum of rows of these names."""
    mine = np.isin(table.rows.operation, [i for i, name in enumerate(table.operations) if name in names])
    total: Floats = np.bincount(table.rows.rank[mine], values[mine], minlength=len(table.ranks)).astype(np.float64)
    return total
