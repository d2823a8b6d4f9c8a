"""How fast a CPU rank's processor is just now, by its own measure, taken out of what the rank computes.

The CPU time of the same work wavers with whatever else the host runs: simultaneous multithreading and the clock's
frequency slow each instruction, and who was kept off the processor finds its caches empty. Both are measured: a tiny
fixed piece of work comes before each pass (span `processor_probe`), and wall time in passes without CPU time was spent
in the run queue. What they cost is learnt from how compute, probe and queue of each rank vary together, by recursive
least squares over all ranks; what they explain of a rank's deviation from its own average is taken out. A rank whose
processor is slow from the start stays slow, and so does one whose work itself takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.signals import matrix
from megatronapp.detector.steps import Floats, Ints, StepTable

FORGETTING = 0.995
"""Of the fit, a step."""
AVERAGED_STEPS = 100
"""In a rank's average; what has lasted for longer is usual."""
ENOUGH = 60
"""Rank-steps after which the fit is used."""
MOST = float(np.log(4.0))
"""A measure that deviates by more was disturbed itself."""
RIDGE = 1e-3
"""Variance of a measure (3 %) below which it explains little."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Seconds of each rank in one step, nan: not known."""

    probe: Floats
    """CPU time of one probe."""
    queued: Floats
    """In passes, waiting for the processor."""
    compute: Floats
    """CPU time of the passes."""

    def logs(self) -> Floats:
        """Ranks × (probe, 1 + queued ÷ compute, compute); nan in all where one is not known."""
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = (np.log(self.probe), np.log1p(self.queued / self.compute), np.log(self.compute))
        found = np.stack(columns, axis=1)
        return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, np.nan)


def measures(table: StepTable, compute: matrix.Compute) -> Measures | None:
    """None of a step without probes. compute: the table's passes."""
    probes = matrix.compute(table, (SpanName.PROCESSOR_PROBE,))
    if not probes.operations:
        return None
    seconds = np.nansum(compute.elapsed, axis=1)
    wall = np.nansum(matrix.compute(table, clock=True).elapsed, axis=1)
    each = probes.elapsed[:, 0] / np.maximum(probes.passes[:, 0], 1)
    return Measures(np.where(table.ranks.on_cpu, each, np.nan), np.maximum(wall - seconds, 0.0), seconds)


def steadied(compute: matrix.Compute, slower: Floats) -> matrix.Compute:
    """What each rank would have computed for, were it not slower by this factor."""
    return replace(compute, seconds=compute.seconds / slower[:, None], elapsed=compute.elapsed / slower[:, None])


class ProcessorModel:
    """Learns what probe and queue say of compute; one per attempt."""

    def __init__(self) -> None:
        self._average: Floats = np.zeros((0, 3))
        self._steps: Ints = np.zeros(0, np.int64)
        """That are in each rank's average."""
        self._moments: Floats = np.zeros((2, 2))
        self._products: Floats = np.zeros(2)
        self._samples = 0.0

    def slower(self, ranks: Ints, measured: Measures, healthy: npt.NDArray[np.bool_]) -> Floats:
        """By which factor each rank's processor slows its compute beside what is usual of that rank; 1 where unknown.
        Learns from the healthy ranks."""
        deviations = self._deviations(ranks, measured.logs())
        found: Floats = np.exp(deviations[:, :2] @ self._costs())
        self._learn(deviations[healthy])
        return found

    def _deviations(self, ranks: Ints, logs: Floats) -> Floats:
        """From each rank's average of the steps before, into which this one is taken; 0 where there is none."""
        if (more := int(ranks.max(initial=-1)) + 1 - len(self._steps)) > 0:
            self._average = np.concatenate([self._average, np.zeros((more, 3))])
            self._steps = np.concatenate([self._steps, np.zeros(more, np.int64)])
        known = np.isfinite(logs[:, 0])
        from_average = np.where(known[:, None], logs - self._average[ranks], 0.0)
        first = self._steps[ranks] == 0
        self._steps[ranks] += known
        share = 1 / np.clip(self._steps[ranks], 1, AVERAGED_STEPS)
        self._average[ranks] += share[:, None] * from_average
        return np.clip(np.where(first[:, None], 0.0, from_average), -MOST, MOST)

    def _costs(self) -> Floats:
        """Of probe and queue: a pass is slowed by no more than its measure is."""
        if self._samples < ENOUGH:
            return np.zeros(2)
        damped = self._moments + RIDGE * self._samples * np.eye(2)
        costs: Floats = np.clip(np.linalg.solve(damped, self._products), 0.0, 1.0)
        return costs

    def _learn(self, deviations: Floats) -> None:
        x, y = deviations[:, :2], deviations[:, 2]
        self._moments = FORGETTING * self._moments + x.T @ x
        self._products = FORGETTING * self._products + x.T @ y
        self._samples = FORGETTING * self._samples + len(x)
