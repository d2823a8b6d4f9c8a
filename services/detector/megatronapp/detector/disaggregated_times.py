"""What a step's summary tells of MegaFBD: for what its stages wait, and how many microbatches are taken ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.pipeline_times import by_rank
from megatronapp.detector.steps import Floats, StepTable

WAITS: Mapping[str, frozenset[SpanName]] = {
    "forward": frozenset((SpanName.WAIT_INPUT, SpanName.WAIT_LINEARS)),
    "weights": frozenset((SpanName.WAIT_WEIGHTS,)),
    "slot": frozenset((SpanName.WAIT_SLOT,)),
}
ROLES = ("forward", "backward")
MAX_STAGES = 256
"""Of a role: more are not told apart, as their number is a sender's word."""
Stage = tuple[str, int]
"""Role, stage of it."""


def waits(table: StepTable) -> dict[tuple[str, int, str], float]:
    """By role, stage, and what is waited for: seconds in the step, of the stage's rank that waits longest."""
    return {
        (*stage, name): float(seconds.max())
        for name, spans in WAITS.items()
        for stage, seconds in _by_stage(
            table, by_rank(table, spans, table.rows.duration), by_rank(table, spans, table.rows.count)
        )
    }


def slots_held(table: StepTable) -> dict[Stage, float]:
    """By role and stage: when a microbatch begins, the mean over microbatches and ranks."""
    names = frozenset((SpanName.WAIT_INPUT,))
    counts = by_rank(table, names, table.rows.count)
    held = by_rank(table, names, table.rows.tokens) / np.maximum(counts, 1)
    return {stage: float(values.mean()) for stage, values in _by_stage(table, held, counts)}


def _by_stage(table: StepTable, values: Floats, counts: Floats) -> Iterator[tuple[Stage, Floats]]:
    """The values of each stage's ranks that have counted any."""
    ranks = table.ranks
    if ranks.role is None:
        return
    for role in ROLES:
        mine = (ranks.role == role) & (counts > 0) & (ranks.stage < MAX_STAGES)
        for stage in np.unique(ranks.stage[mine]).tolist():
            yield (role, stage), values[mine & (ranks.stage == stage)]
