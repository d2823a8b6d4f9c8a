"""The order of a stage that runs backward passes of forwards that others have run: it gets each part's input, runs the
part again (R, a FORWARD here) and then its B. Pure.

Backwards keep megatron-core's order, so that gradients are summed as it sums them. R of the next microbatch comes
before B of this one, to be run while B's gradient is still on its way; no more than `ahead` + 1 of them are held. Where
W is split from B it comes behind B, which the stage before waits for, and before the next R, as it holds activations
until then: the pipeline fills and empties at the pace of B alone.

A chunk's slots are inputs that were received and have not had their B. A forward rank goes on while no more than
ON_THE_WAY of its outputs for a part have no slot.
"""

from __future__ import annotations

from dataclasses import replace

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order, microbatch_groups, passes
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout

ON_THE_WAY = 2
"""Outputs of a forward rank for one part of the model that are sent and not received."""


def split_where_it_helps(layout: Layout, tensor: int, mode: Mode) -> Layout:
    """W apart from B where a stage waits for what B sends. With tensor ranks it stays in B: megatron-core hides their
    collectives behind W. In *layers* mode too: W would hold all that B runs again."""
    return replace(layout, split=layout.stages > 1 and tensor == 1 and mode is not Mode.LAYERS)


def ahead_with(layout: Layout, slots: int) -> int:
    """How far to run ahead: by one, where a stage waits for gradients and there are slots for it. One stage alone waits
    for none: it would only hold more, and begin its first B later."""
    return int(layout.stages > 1 and slots >= least_slots(layout, ahead=1))


def recompute_order(layout: Layout, *, ahead: int = 1) -> Order:
    """The same on each stage."""
    table = passes(layout.stages, layout.chunks, layout.microbatches)
    places = [(layout.chunks - 1 - chunk, microbatch) for chunk, microbatch in table]
    recomputed = [Operation(Kind.FORWARD, *place) for place in places]
    backwards = [Operation(Kind.BACKWARD, *place) for place in places]
    wgrads = [Operation(Kind.WGRAD, *place) for place in places] if layout.split else []
    order = recomputed[:ahead]
    for index, backward in enumerate(backwards):
        order += [*recomputed[ahead + index : ahead + index + 1], backward, *wgrads[index : index + 1]]
    return order


def least_slots(layout: Layout, *, ahead: int = 0) -> int:
    """Of a chunk: with fewer both worlds wait for each other. Forward ranks send in the order of microbatches; the last
    chunk's backwards of a whole group come before the first of another chunk, for which the group's inputs are in slots
    or on their way then."""
    group = len(microbatch_groups(layout.stages, layout.microbatches)[-1]) if layout.chunks > 1 else 1
    return min(max(1 + ahead, group - ON_THE_WAY), layout.microbatches)
