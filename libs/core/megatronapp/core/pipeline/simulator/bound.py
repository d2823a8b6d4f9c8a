"""What no schedule can beat, whatever it chooses, with given times."""

from __future__ import annotations

import numpy as np

from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Wiring


def step_bound_ns(layout: Layout, durations: Whole, wiring: Wiring, *, barrier: bool) -> int:
    """Least time of a step with these durations, whatever the order, from a pipeline's first begin to its last end;
    without `barrier` from each stage's own begin to its end, the longest.

    A stage can't begin before the first microbatch has come to it, works as long as it works, and what its last B made
    still has to go back to the first part. durations: (stages, operations) in ns.
    """
    kinds = len(layout.kinds)
    work = durations.reshape(layout.stages, kinds, layout.chunks, layout.microbatches)
    messages = (wiring.delay + wiring.occupancy).reshape(work.shape)
    by_part = [layout.place(part) for part in range(layout.parts)]
    forward = np.array([work[s, 0, c] + messages[s, 0, c] for s, c in by_part])
    backward = np.array([work[s, 1, c] + messages[s, 1, c] for s, c in by_part])
    busy = work.sum(axis=(1, 2, 3))
    passes = work[:, :2].sum(axis=(1, 2, 3))
    first, last_wgrad = by_part[0], 0
    if layout.split:
        last_wgrad = int(work[first[0], Kind.WGRAD, first[1]].min())
    whole_path = int((forward.sum(axis=0) + backward.sum(axis=0)).max())
    bound = whole_path + last_wgrad
    for stage in range(layout.stages):
        lowest = min(layout.part(stage, chunk) for chunk in range(layout.chunks))
        head = int(forward[:lowest].sum(axis=0).min()) + int(messages[stage, 0, by_part[lowest][1]].min())
        tail = int(backward[:lowest].sum(axis=0).min())
        bound = max(bound, head + int(passes[stage]) + tail + (last_wgrad if lowest else 0))
        bound = max(bound, int(busy[stage]) + (head if barrier else 0))
    return bound
