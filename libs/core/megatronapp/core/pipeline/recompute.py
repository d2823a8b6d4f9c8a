"""The order of a stage that runs backward passes of forwards that others have run: it gets each part's input, runs the
part again (R, a FORWARD here) and then its B. Pure.

Backwards keep megatron-core's order, so that gradients are summed as it sums them. R of the next microbatch comes
before B of this one, to be run while B's gradient is still on its way; no more than `ahead` + 1 of them are held.
"""

from __future__ import annotations

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order, microbatch_groups, passes
from megatronapp.core.pipeline.placement import Layout


def recompute_order(layout: Layout, *, ahead: int = 1) -> Order:
    """The same on each stage. Without W."""
    table = passes(layout.stages, layout.chunks, layout.microbatches)
    places = [(layout.chunks - 1 - chunk, microbatch) for chunk, microbatch in table]
    recomputed = [Operation(Kind.FORWARD, *place) for place in places]
    backwards = [Operation(Kind.BACKWARD, *place) for place in places]
    order = recomputed[:ahead]
    for index, backward in enumerate(backwards):
        order += [*recomputed[ahead + index : ahead + index + 1], backward]
    return order


def least_slots(layout: Layout, *, ahead: int = 1) -> int:
    """Inputs of a chunk that a stage must take before the first of them has had its B: with fewer, forward ranks that
    send in the order of microbatches and this order would wait for each other."""
    group = len(microbatch_groups(layout.stages, layout.microbatches)[-1]) if layout.chunks > 1 else 1
    return min(group + ahead, layout.microbatches)
