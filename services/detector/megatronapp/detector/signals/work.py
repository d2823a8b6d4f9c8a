"""How much work a microbatch is: time expected from tokens, the sum of squared sequence lengths and the experts' load.

Attention costs the square of a sequence's length, so two replicas with equal tokens may differ by tens of percent
without any slow device; so may two ranks whose experts are given unequal shares of the tokens. What each costs is
learnt for each (stage, operation, chunk) by recursive least squares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.matrix import Compute
from megatronapp.detector.steps import Floats, Ints

FORGETTING = 0.995
"""What a step still weighs at the next one: after 200 steps a third, so that costs may change with the data."""
ENOUGH = 12
"""Rank-steps after which a fit is used; before, a step whose ranks do unequal work is not judged."""
VARIES = 1e-3
"""Work that differs by less (standard deviation over mean) counts as equal."""
RIDGE = 1e-6
"""Keeps a fit of covariates that hardly vary solvable; the costs change by as little."""
CONSTANT, TOKENS, SQUARES, LOAD = range(4)
"""Features of a rank's pass. The load is that beyond the mean rank's, 0 without experts."""

Key = tuple[int, str, int]
Varying = list[tuple[Key, npt.NDArray[np.intp], int]]
"""Key, ranks, column."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of each rank and key ÷ that of its stage's mean (ranks × keys): 1 where all do the same, nan where the covariates
    vary but what they cost is not learnt yet."""

    total: Floats
    sequences: Floats
    """As if all experts had the mean load."""
    experts: Floats
    """As if all microbatches were the mean one."""


@dataclass(slots=True)
class _Fit:
    """Sums of a least-squares fit of time over the features, each of them over its unit."""

    unit: Floats
    moments: Floats = field(default_factory=lambda: np.zeros((4, 4)))
    products: Floats = field(default_factory=lambda: np.zeros(4))
    samples: int = 0

    def learn(self, features: Floats, seconds: Floats) -> None:
        x = features / self.unit
        self.moments = FORGETTING * self.moments + x.T @ x
        self.products = FORGETTING * self.products + x.T @ seconds
        self.samples += len(seconds)

    def predict(self, features: Floats) -> Floats:
        predicted: Floats = (features / self.unit) @ self._costs()
        return predicted

    def beside_mean(self, features: Floats, varied: slice) -> Floats:
        """Time of each row ÷ time of the mean row, were they unequal in the varied features alone."""
        mean = features.mean(axis=0, keepdims=True)
        asked = np.repeat(mean, len(features), axis=0)
        asked[:, varied] = features[:, varied]
        predicted = self.predict(asked)
        return np.where(predicted > 0, predicted / self.predict(mean), np.nan)

    def _costs(self) -> Floats:
        """A pass takes no longer for a smaller load, and no more than in proportion to it: where the same ranks have
        the larger load always, their own speed would pass for its cost."""
        damped = self.moments + RIDGE * np.trace(self.moments) * np.eye(4)
        costs: Floats = np.linalg.solve(damped, self.products)
        usual = self.products[CONSTANT] / self.moments[CONSTANT, CONSTANT]
        bounded = np.clip(costs[LOAD], 0.0, usual)
        if bounded != costs[LOAD]:
            costs[:LOAD] = np.linalg.solve(damped[:LOAD, :LOAD], self.products[:LOAD] - damped[:LOAD, LOAD] * bounded)
            costs[LOAD] = bounded
        return costs


class WorkModel:
    """Learns what the job's work costs; one per attempt."""

    def __init__(self) -> None:
        self._fits: dict[Key, _Fit] = {}

    def relative(self, compute: Compute, load: Floats, varying: Varying) -> Work:
        """load: of each rank's experts ÷ the mean one. varying: of this step."""
        total, sequences, experts = (np.ones_like(compute.seconds) for _ in range(3))
        for key, members, column in varying:
            features = _features(compute, load, members, column)
            fit = self._fits.get(key)
            known = fit if fit is not None and fit.samples >= ENOUGH else None
            for ratio, varied in ((total, slice(None)), (sequences, slice(LOAD)), (experts, slice(LOAD, None))):
                ratio[members, column] = known.beside_mean(features, varied) if known else np.nan
        return Work(total, sequences, experts)

    def learn(self, compute: Compute, load: Floats, varying: Varying, healthy: npt.NDArray[np.bool_]) -> None:
        """Take in one step's times of the healthy ranks."""
        for key, members, column in varying:
            used = members[healthy[members]]
            if not len(used):
                continue
            features = _features(compute, load, used, column)
            fit = self._fits.setdefault(key, _Fit(_unit(features)))
            fit.learn(features, compute.seconds[used, column] / compute.count[used, column])

    def varying(self, compute: Compute, stage: Ints, load: Floats) -> Varying:
        """What is known by its covariates and not the same for all, now or before."""
        found = []
        for s in np.unique(stage):
            for column, (operation, chunk) in enumerate(zip(compute.operations, compute.chunks, strict=True)):
                key = (int(s), operation, chunk)
                known = np.isfinite(compute.seconds[:, column]) & (compute.tokens[:, column] > 0)
                members = np.flatnonzero((stage == s) & known)
                if len(members) and (key in self._fits or _varies(_features(compute, load, members, column))):
                    found.append((key, members, column))
        return found


def _features(compute: Compute, load: Floats, members: npt.NDArray[np.intp], column: int) -> Floats:
    count = compute.count[members, column]
    return np.stack(
        [
            np.ones(len(members)),
            compute.tokens[members, column] / count,
            compute.length_squares[members, column] / count,
            load[members] - 1.0,
        ],
        axis=1,
    )


def _varies(features: Floats) -> bool:
    return bool(np.any(features.std(axis=0) > VARIES * _unit(features)))


def _unit(features: Floats) -> Floats:
    unit: Floats = np.maximum(features.mean(axis=0), 1e-12)
    unit[LOAD] = 1.0
    return unit
