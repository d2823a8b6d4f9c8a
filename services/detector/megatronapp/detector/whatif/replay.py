"""Replay: when each operation of a step would end, were its duration this."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatronapp.detector.steps import Floats
from megatronapp.detector.whatif.graph import Graph


def replay(graph: Graph[Any], durations: Floats) -> Floats:
    """End of every operation, in seconds from the step's begin: the longest path to it.

    durations: (operations, …, replicas) in seconds; the axes between may hold steps, scenarios or both. Of an operation
    that starts together with others it is the time from the last one's arrival. The result has the same shape.
    """
    if len(durations) != len(graph):
        raise ValueError(f"{len(durations)} durations for a graph of {len(graph)} operations")
    ends = np.empty_like(durations)
    nothing = np.zeros_like(durations[0])
    for event in graph.events:
        begin = ends[event.after[0]] if event.after else nothing
        for before in event.after[1:]:
            begin = np.maximum(begin, ends[before])
        if event.across_replicas:
            begin = begin.max(axis=-1, keepdims=True)
        for operation in event.operations:
            np.add(begin, durations[operation], out=ends[operation])
    return ends


def step_seconds(graph: Graph[Any], durations: Floats) -> Floats:
    """How long the step takes: the last end over operations and replicas, of shape durations.shape[1:-1]."""
    seconds: Floats = replay(graph, durations).max(axis=(0, -1))
    return seconds
