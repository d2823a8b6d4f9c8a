"""Slowdown of a recorded job: its steps replayed as they were, over the same steps with every operation equalised.

Method: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import Floats
from megatronapp.detector.whatif.recording import (
    BACKWARD,
    COMPUTE,
    FORWARD,
    GC,
    Recording,
    own_seconds,
    recorded_seconds,
    recording_graph,
)
from megatronapp.detector.whatif.replay import step_seconds

EQUAL_STAGES = 0.05
"""log of a ratio: stages that differ by less are not told as imbalanced, either (profiles.py)."""


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


class Equalised:
    """A recorded job beside itself with every operation at its type's typical time. Raises DataError."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self._graph = recording, recording_graph(recording)
        own = own_seconds(recording, self._graph)
        self._typical = equalise(recording, own)
        self._seconds = _fill(recording, own, self._typical)
        self._stages = np.array([operation.key.stage for operation in recording.operations])[:, None, None]
        self._types = np.array([operation.key.type for operation in recording.operations])
        self.equalised_seconds = step_seconds(self._graph, self._typical)
        self.replayed_seconds = step_seconds(self._graph, self._seconds)

    def keeping(self, kept: npt.NDArray[np.bool_]) -> Floats:
        """Seconds of each step when these operations alone, (operations, steps, replicas) or what broadcasts to it,
        keep their recorded times."""
        return step_seconds(self._graph, np.where(kept, self._seconds, self._typical))

    def of_workers(self, workers: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
        """(operations, 1, replicas): which are those of these (stage, replica) pairs."""
        mine = np.zeros((len(self.recording.operations), 1, len(self.recording.replicas)), bool)
        for stage, replica in workers:
            mine |= (self._stages == stage) & (self.recording.replicas == replica)
        return mine

    def cost_ratio(self, workers: Sequence[tuple[int, int]], since_step: int | None = None) -> float:
        """What (stage, replica) pairs cost a job whose other workers are typical of their stage, over the steps since
        this one. Where stages have equal work it is the published slowdown of a worker."""
        mine, all_steps = self.of_workers(workers), self.recording.steps
        typical = self._typical * self._share_of_stages(~mine)
        steps = all_steps >= (all_steps[0] if since_step is None else since_step)
        slow = step_seconds(self._graph, np.where(mine, self._seconds, typical))
        return float(slow[steps].mean() / step_seconds(self._graph, typical)[steps].mean())

    def _share_of_stages(self, others: npt.NDArray[np.bool_]) -> Floats:
        """(operations, 1, 1): the mean time of a pass on its stage over that on all, among these workers; 1 where a
        stage has none, where stages are as good as equal, and for everything else."""
        share = np.ones_like(self._stages, dtype=np.float64)
        times = np.where(others, self._seconds, np.nan)
        for name in (FORWARD, BACKWARD):
            passes = self._types == name
            for stage in np.unique(self._stages):
                here = passes & (self._stages.ravel() == stage)
                if np.isfinite(times[here]).any():
                    share[here] = np.nanmean(times[here]) / np.nanmean(times[passes])
        return share if np.abs(np.log(share)).max() > EQUAL_STAGES else np.ones_like(share)

    def breakdown(self, labels: np.ndarray) -> Breakdown:
        """labels: of operations × steps × replicas, or what broadcasts to it."""
        keys, ideal = np.unique(labels), self.equalised_seconds
        kept = np.stack([self.keeping(labels == key) for key in keys])
        return Breakdown(tuple(keys.tolist()), kept.mean(axis=1) / ideal.mean(), kept / ideal)

    def slowdown(self) -> Slowdown:
        """Of the job, explained by replica, stage and operation type."""
        types = np.array([_reported_type(name) for name in self._types.tolist()])
        ideal, replayed, recorded = self.equalised_seconds, self.replayed_seconds, recorded_seconds(self.recording)
        return Slowdown(
            ratio=float(replayed.mean() / ideal.mean()),
            delay_ratio=float(recorded.mean() / replayed.mean()),
            step_ratio=replayed / ideal,
            recorded_seconds=recorded,
            replayed_seconds=replayed,
            equalised_seconds=ideal,
            by_replica=self.breakdown(self.recording.replicas[None, None, :]),
            by_stage=self.breakdown(self._stages),
            by_operation=self.breakdown(types[:, None, None]),
        )


def slowdown(recording: Recording) -> Slowdown:
    """Replay the recorded job and explain its slowdown. Raises DataError."""
    return Equalised(recording).slowdown()


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
