"""How many activations a stage must be able to hold. Counted in chunks × microbatches, one number for all stages.

Little's law: if a microbatch begins every T, and an activation of part s lives for R, R ÷ T of them are in flight. With
fewer the pipeline can't run at full pace. With fewer than chunks it may stop for ever (admission.py).
"""

from __future__ import annotations

from math import ceil

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.orders import Order, interleaved
from megatronapp.core.pipeline.placement import Layout


def littles_bound(layout: Layout, times: PassTimes, message_ns: float) -> float:
    """Activations in flight on the stage that holds most, at full pace. times: F, B (dgrad) and W by stage and chunk;
    message_ns: from one stage to the next."""
    places = [layout.place(part) for part in range(layout.parts)]
    passes = [float(times[Kind.FORWARD][place] + times[Kind.BACKWARD][place]) for place in places]
    wgrad = [float(times[Kind.WGRAD][place]) for place in places]
    pace = float(times.sum(axis=(0, 2)).max())
    in_flight = [0.0] * layout.stages
    lives = 0.0
    for part in reversed(range(layout.parts)):
        stage, _ = places[part]
        lives += passes[part] + (0.0 if layout.split else wgrad[part])
        if part + 1 < layout.parts and places[part + 1][0] != stage:
            lives += 2 * message_ns
        in_flight[stage] += (lives + (wgrad[part] if layout.split else 0.0)) / pace
    return max(in_flight)


def least_cap(layout: Layout, times: PassTimes, message_ns: float) -> int:
    """The smallest cap at which full pace is possible, never more than everything."""
    needed = ceil(littles_bound(layout, times, message_ns) - 1e-9)
    return min(max(layout.chunks, needed), layout.chunks * layout.microbatches)


def peak(order: Order) -> int:
    """Most activations in flight when an order is run: from F to W, or to B where the order has no W."""
    last = max((operation.kind for operation in order), default=Kind.BACKWARD)
    in_flight = most = 0
    for operation in order:
        in_flight += (operation.kind is Kind.FORWARD) - (operation.kind is last)
        most = max(most, in_flight)
    return most


def stock_cap(layout: Layout, group: int = 0) -> int:
    """The largest peak of megatron-core's schedule, which is its first stage's."""
    return peak(interleaved(layout, 0, group))


def checked_cap(layout: Layout, cap: int) -> int:
    """A cap under which no order can deadlock. Raises UsageError with the least one."""
    if cap < layout.chunks:
        raise UsageError(
            f"a cap of {cap} activations can stop for ever: with {layout.chunks} chunks a stage it must be at least "
            f"{layout.chunks}"
        )
    return cap


def too_small(cap: int, needed: int) -> str | None:
    """What to say of a cap that costs pace, or None."""
    if cap >= needed:
        return None
    return f"a cap of {cap} activations keeps the pipeline from full pace, which takes {needed}; raise it to {needed}"
