"""DualPipeV's overlapped pairs: a forward and a backward of the other chunk that run as one and end together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout


def results_together(layout: Layout, orders: Sequence[Sequence[Operation]], durations: Whole) -> Whole:
    """By stage and operation: how much later an input comes because it is the result of such a pair."""
    late = np.zeros_like(durations)
    for stage, order in enumerate(orders):
        for forward, dgrad, wgrad in zip(order, order[1:], order[2:], strict=False):
            first = stage == layout.stages - 1 and dgrad == (Kind.BACKWARD, 1, 0)  # which DualPipeV does not overlap
            if (forward.kind, dgrad.kind) != (Kind.FORWARD, Kind.BACKWARD) or forward.chunk == dgrad.chunk or first:
                continue
            if wgrad != dgrad._replace(kind=Kind.WGRAD):
                continue
            behind_dgrad = int(durations[stage, layout.number(wgrad)])
            _delay(late, layout, stage, forward, int(durations[stage, layout.number(dgrad)]) + behind_dgrad)
            _delay(late, layout, stage, dgrad, behind_dgrad)
    return late


def _delay(late: Whole, layout: Layout, stage: int, operation: Operation, by: int) -> None:
    following = layout.following(stage, operation.kind, operation.chunk)
    if following is not None:
        target, kind, chunk = following
        late[target, layout.number(Operation(kind, chunk, operation.microbatch))] += by
