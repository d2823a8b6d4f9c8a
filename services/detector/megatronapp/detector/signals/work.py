"""How much work a microbatch is: time expected from tokens and from the sum of squared sequence lengths.

Attention costs the square of a sequence's length, so two replicas with equal tokens may differ by tens of percent
without any slow device. The two costs are learnt for each (stage, operation, chunk) by recursive least squares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.matrix import Compute
from megatronapp.detector.steps import Floats, Ints

FORGETTING = 0.995
ENOUGH = 12
"""Rank-steps after which a fit is used; before, a step whose ranks do unequal work is not judged."""
VARIES = 1e-3
"""Work that differs by less (standard deviation over mean) counts as equal."""
RIDGE = 1e-6

Key = tuple[int, str, int]


@dataclass(slots=True)
class _Fit:
    """Sums of a least-squares fit of time over (1, tokens, length squares), each of them over its own mean."""

    unit: Floats
    moments: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    products: Floats = field(default_factory=lambda: np.zeros(3))
    samples: int = 0

    def learn(self, features: Floats, seconds: Floats) -> None:
        x = features / self.unit
        self.moments = FORGETTING * self.moments + x.T @ x
        self.products = FORGETTING * self.products + x.T @ seconds
        self.samples += len(seconds)

    def predict(self, features: Floats) -> Floats:
        damped = self.moments + RIDGE * np.trace(self.moments) * np.eye(3)
        predicted: Floats = (features / self.unit) @ np.linalg.solve(damped, self.products)
        return predicted


class WorkModel:
    """Learns what the job's work costs; one per attempt."""

    def __init__(self) -> None:
        self._fits: dict[Key, _Fit] = {}

    def relative(self, compute: Compute, stage: Ints) -> Floats:
        """Work of each rank and key ÷ its stage's mean (ranks × keys): 1 where all do the same, nan where the
        covariates vary but what they cost is not learnt yet."""
        ratio = np.ones_like(compute.seconds)
        for key, members, column in self._varying(compute, stage):
            features = _features(compute, members, column)
            fit = self._fits.get(key)
            if fit is None or fit.samples < ENOUGH:
                ratio[members, column] = np.nan
                continue
            predicted = fit.predict(features)
            typical = fit.predict(features.mean(axis=0, keepdims=True))
            ratio[members, column] = np.where(predicted > 0, predicted / typical, np.nan)
        return ratio

    def learn(self, compute: Compute, stage: Ints, healthy: npt.NDArray[np.bool_]) -> None:
        """Take in one step's times of the healthy ranks."""
        for key, members, column in self._varying(compute, stage):
            used = members[healthy[members]]
            if not len(used):
                continue
            features = _features(compute, used, column)
            fit = self._fits.setdefault(key, _Fit(np.maximum(features.mean(axis=0), 1e-12)))
            fit.learn(features, compute.seconds[used, column] / compute.count[used, column])

    def _varying(self, compute: Compute, stage: Ints) -> list[tuple[Key, npt.NDArray[np.intp], int]]:
        """(key, ranks, column) of what is known by its covariates and not the same for all, now or before."""
        found = []
        for s in np.unique(stage):
            for column, (operation, chunk) in enumerate(zip(compute.operations, compute.chunks, strict=True)):
                key = (int(s), operation, chunk)
                known = np.isfinite(compute.seconds[:, column]) & (compute.tokens[:, column] > 0)
                members = np.flatnonzero((stage == s) & known)
                if len(members) and (key in self._fits or _varies(_features(compute, members, column))):
                    found.append((key, members, column))
        return found


def _features(compute: Compute, members: npt.NDArray[np.intp], column: int) -> Floats:
    count = compute.count[members, column]
    return np.stack(
        [
            np.ones(len(members)),
            compute.tokens[members, column] / count,
            compute.length_squares[members, column] / count,
        ],
        axis=1,
    )


def _varies(features: Floats) -> bool:
    mean = features.mean(axis=0)
    return bool(np.any(features.std(axis=0) > VARIES * np.maximum(mean, 1e-12)))
