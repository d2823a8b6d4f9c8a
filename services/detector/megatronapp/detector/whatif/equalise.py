"""Slowdown of a recorded job: its steps replayed as they were, over the same steps with every operation equalised.

Method: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from megatronapp.detector.steps import Floats
from megatronapp.detector.whatif.graph import Graph
from megatronapp.detector.whatif.recording import (
    COMPUTE,
    GC,
    Key,
    Recording,
    own_seconds,
    recorded_seconds,
    recording_graph,
)
from megatronapp.detector.whatif.replay import step_seconds


@dataclass(frozen=True, slots=True)
class Breakdown:
    """How slow the job is when one part of it alone keeps its recorded times and everything else is equalised."""

    keys: tuple[Hashable, ...]
    ratio: Floats
    """(keys,): mean step time over steps ÷ the mean equalised one."""
    step_ratio: Floats
    """(keys, steps)."""

    def as_dict(self) -> dict[str, float]:
        """Largest first."""
        order = np.argsort(-self.ratio, kind="stable")
        return {str(self.keys[index]): float(self.ratio[index]) for index in order}


@dataclass(frozen=True, slots=True)
class Slowdown:
    """All ratios are 1 when there is nothing to gain."""

    ratio: float
    """Mean replayed step time ÷ mean equalised step time."""
    delay_ratio: float
    """Mean recorded step time ÷ mean replayed step time: what no recorded operation explains (launches, data)."""
    step_ratio: Floats
    recorded_seconds: Floats
    replayed_seconds: Floats
    equalised_seconds: Floats
    by_replica: Breakdown
    by_stage: Breakdown
    by_operation: Breakdown
    """Sends and receives of one direction count as one operation type: forward-pp-comm, backward-pp-comm."""


def slowdown(recording: Recording) -> Slowdown:
    """Replay the recorded job and explain its slowdown by replica, stage and operation type. Raises DataError."""
    graph = recording_graph(recording)
    equalised = equalise(recording, own_seconds(recording, graph))
    seconds = _fill(recording, own_seconds(recording, graph), equalised)
    ideal = step_seconds(graph, equalised)
    replayed = step_seconds(graph, seconds)
    recorded = recorded_seconds(recording)
    stages = np.array([operation.key.stage for operation in recording.operations])[:, None, None]
    types = np.array([_reported_type(operation.key.type) for operation in recording.operations])[:, None, None]

    def breakdown(labels: np.ndarray) -> Breakdown:
        return _breakdown(graph, seconds, equalised, ideal, labels)

    return Slowdown(
        ratio=float(replayed.mean() / ideal.mean()),
        delay_ratio=float(recorded.mean() / replayed.mean()),
        step_ratio=replayed / ideal,
        recorded_seconds=recorded,
        replayed_seconds=replayed,
        equalised_seconds=ideal,
        by_replica=breakdown(recording.replicas[None, None, :]),
        by_stage=breakdown(stages),
        by_operation=breakdown(types),
    )


def equalise(recording: Recording, seconds: Floats) -> Floats:
    """Every operation at its type's typical own time, over all workers and steps: the mean of computations (all their
    work has to be done by someone), the median of communication (whose tail is disturbance)."""
    equalised = np.zeros_like(seconds)
    types = np.array([operation.key.type for operation in recording.operations])
    for name in set(types.tolist()):
        known = seconds[types == name]
        known = known[~np.isnan(known)]
        if len(known):
            equalised[types == name] = known.mean() if name in COMPUTE else np.median(known)
    return equalised


def _fill(recording: Recording, seconds: Floats, equalised: Floats) -> Floats:
    """Own times with the gaps filled: what was not recorded took its type's typical time, and a gc did not run."""
    is_gc = np.array([operation.key.type == GC for operation in recording.operations])[:, None, None]
    return np.where(np.isnan(seconds), np.where(is_gc, 0.0, equalised), seconds)


def _reported_type(name: str) -> str:
    direction, _, end = name.rpartition("-")
    return f"{direction}-pp-comm" if end in ("send", "recv") else name


def _breakdown(graph: Graph[Key], seconds: Floats, equalised: Floats, ideal: Floats, labels: np.ndarray) -> Breakdown:
    keys = np.unique(labels)
    kept = np.stack([step_seconds(graph, np.where(labels == key, seconds, equalised)) for key in keys])
    return Breakdown(tuple(keys.tolist()), kept.mean(axis=1) / ideal.mean(), kept / ideal)
