"""The step's graph from the static pipeline schedule: 1F1B, or interleaved 1F1B with virtual stages."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.whatif.graph import Graph, GraphBuilder

FORWARD: str = SpanName.FORWARD
BACKWARD: str = SpanName.BACKWARD
GRAD_SYNC: str = SpanName.GRAD_SYNC
OPTIMIZER: str = SpanName.OPTIMIZER


class Compute(NamedTuple):
    """One microbatch's forward or backward pass through a chunk, or what ends a stage's step (microbatch −1)."""

    operation: str
    stage: int
    chunk: int
    microbatch: int


def stage_order(stage: int, stages: int, chunks: int, microbatches: int) -> list[Compute]:
    """What a stage computes in one step, in the order of 1F1B (chunks 1) or its interleaved form.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021.
    """
    groups = _groups(stages, microbatches)
    passes = [(chunk, microbatch) for group in groups for chunk in range(chunks) for microbatch in group]
    forward = [Compute(FORWARD, stage, chunk, microbatch) for chunk, microbatch in passes]
    backward = [Compute(BACKWARD, stage, chunks - 1 - chunk, microbatch) for chunk, microbatch in passes]
    warm_up = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * len(groups[0])
    warm_up = min(warm_up, len(forward))
    steady = [one for pair in zip(forward[warm_up:], backward, strict=False) for one in pair]
    return forward[:warm_up] + steady + backward[len(forward) - warm_up :]


def _groups(stages: int, microbatches: int) -> list[range]:
    """Microbatches that pass through one chunk before any enters the next: as many as stages, the last ones with the
    group before when they are fewer."""
    starts = range(0, max(1, microbatches - stages + 1), stages)
    return [range(first, microbatches if first == starts[-1] else first + stages) for first in starts]


@lru_cache(maxsize=64)
def schedule_graph(stages: int, chunks: int, microbatches: int) -> Graph[Compute]:
    """Graph whose operations are Compute values.

    Messages cost no time. After the last backward a stage waits for the other replicas' same stage (gradient sync),
    and all stages of all replicas for each other before the optimizer (gradient norm).
    """
    builder = GraphBuilder[Compute]()
    for stage in range(stages):
        order = stage_order(stage, stages, chunks, microbatches)
        builder.chain([*order, Compute(GRAD_SYNC, stage, 0, -1), Compute(OPTIMIZER, stage, 0, -1)])
        for compute in order:
            _depend_on_neighbour(builder, compute, stages, chunks)
        builder.together([Compute(GRAD_SYNC, stage, 0, -1)], across_replicas=True)
    builder.together([Compute(OPTIMIZER, stage, 0, -1) for stage in range(stages)], across_replicas=True)
    return builder.build()


def _depend_on_neighbour(builder: GraphBuilder[Compute], compute: Compute, stages: int, chunks: int) -> None:
    """Forward needs the activation of the model part before, backward the gradient of the part after."""
    towards = -1 if compute.operation == FORWARD else 1
    part = compute.chunk * stages + compute.stage + towards
    if 0 <= part < stages * chunks:
        chunk, stage = divmod(part, stages)
        builder.add(compute, [compute._replace(stage=stage, chunk=chunk)])
