"""The step's graph from the order of each stage's passes: the static schedule's, or any other that is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.caps import stock_cap
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.pass_codes import unpacked
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import dynamic, run
from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.whatif.graph import Graph, GraphBuilder

FORWARD: str = SpanName.FORWARD
BACKWARD: str = SpanName.BACKWARD
WGRAD: str = SpanName.WGRAD
GRAD_SYNC: str = SpanName.GRAD_SYNC
OPTIMIZER: str = SpanName.OPTIMIZER
MAX_RECORDED = 1 << 15
"""Operations of a step."""
PASSES = {Kind.FORWARD: FORWARD, Kind.BACKWARD: BACKWARD, Kind.WGRAD: WGRAD}


class Compute(NamedTuple):
    """One microbatch's forward or backward pass through a chunk, or what ends a stage's step (microbatch −1)."""

    operation: str
    stage: int
    chunk: int
    microbatch: int


def stage_order(stage: int, stages: int, chunks: int, microbatches: int) -> list[Compute]:
    """What a stage computes in one step, in the order of 1F1B (chunks 1) or its interleaved form."""
    layout = Layout(stages=stages, chunks=chunks, microbatches=microbatches)
    return list(_computes(stage, orders.interleaved(layout, stage)))


def _computes(stage: int, order: Iterable[Operation]) -> Iterable[Compute]:
    return (Compute(PASSES[kind], stage, chunk, microbatch) for kind, chunk, microbatch in order)


@lru_cache(maxsize=64)
def schedule_graph(stages: int, chunks: int, microbatches: int, split: bool = False) -> Graph[Compute]:
    """Graph of the static schedule, whose operations are Compute values; with `split` of MegaDPP's (`quiet_orders`)."""
    layout = Layout(stages=stages, chunks=chunks, microbatches=microbatches, split=split)
    if split:
        return order_graph(layout, quiet_orders(layout))
    return order_graph(layout, [orders.interleaved(layout, stage) for stage in range(stages)])


@lru_cache(maxsize=16)
def recorded_graph(layout: Layout, codes: tuple[bytes, ...]) -> Graph[Compute] | None:
    """Graph of the orders that a step's stages told (core/pipeline/pass_codes.py). None where they told none, or none
    that this layout can run, and where playing through each step's own would take too long."""
    if len(codes) != layout.stages or layout.stages * layout.operations > MAX_RECORDED:
        return None
    found = [order for order in (unpacked(each, layout) for each in codes) if order is not None]
    try:
        return order_graph(layout, found) if len(found) == layout.stages else None
    except DataError:
        return None


def quiet_orders(layout: Layout) -> list[orders.Order]:
    """What MegaDPP's stages run under its default policy while F, B and W take the same and no message is late."""
    hints = [orders.interleaved_zb(layout, stage) for stage in range(layout.stages)]
    schedule = dynamic("quiet", layout, hints, [stock_cap(layout)] * layout.stages)
    return run(layout, schedule, np.full((layout.stages, layout.operations), 1000), wire(layout, Links())).orders()


def order_graph(layout: Layout, stage_orders: Sequence[Sequence[Operation]]) -> Graph[Compute]:
    """Graph of stages that run these orders, such as recorded ones.

    Messages cost no time. After the last backward a stage waits for the other replicas' same stage (gradient sync),
    and all stages of all replicas for each other before the optimizer (gradient norm). Raises DataError when the orders
    make stages wait for each other in a circle.
    """
    builder = GraphBuilder[Compute]()
    for stage, order in enumerate(stage_orders):
        builder.chain([*_computes(stage, order), Compute(GRAD_SYNC, stage, 0, -1), Compute(OPTIMIZER, stage, 0, -1)])
        for operation in order:
            _depend(builder, layout, stage, operation)
        builder.together([Compute(GRAD_SYNC, stage, 0, -1)], across_replicas=True)
    builder.together([Compute(OPTIMIZER, stage, 0, -1) for stage in range(layout.stages)], across_replicas=True)
    return builder.build()


def _depend(builder: GraphBuilder[Compute], layout: Layout, stage: int, operation: Operation) -> None:
    """Forward needs the activation of the model part before, backward the gradient of the part after; what the stage
    itself did before is in its order."""
    kind, chunk, microbatch = operation
    following = layout.following(stage, kind, chunk)
    if following is not None and following[1] is kind:
        target, _, there = following
        builder.add(Compute(PASSES[kind], target, there, microbatch), [Compute(PASSES[kind], stage, chunk, microbatch)])
