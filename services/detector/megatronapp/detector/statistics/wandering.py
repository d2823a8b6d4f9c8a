"""Wandering: what an item that remembers does by itself, taken as a first-order autoregression.

A value that lies high stays high for a while without a fault. So steps are judged against what was to be expected of
the step before them, rho^j of its residual j steps later, and their sum against how much such sums vary (Hamilton, Time
Series Analysis, 1994, §4.2): a jump that stays shows at once, and a slow excursion of the same size does not. The
baseline is the less well known the longer the memory is, and its samples show less of the variance than there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.detector.statistics import scale, sequential
from megatronapp.detector.steps import Floats, Ints

MOST = 0.98
"""Correlation of neighbouring steps; what wanders more slowly shows a trend alone in a history."""
SHORTEST = 3
"""Steps that make an alarm at the earliest (rules.base.PAGE_STEPS): fewer are worth no more each."""
_PLACE = int(np.searchsorted(sequential.WINDOWS, SHORTEST))


@dataclass(frozen=True, slots=True)
class Wandering:
    memory: float = 0.0
    """Correlation of neighbouring steps."""
    widened: float = 1.0
    """By how much an item's standard deviation is taken larger for it already."""
    surprise: float = 1.0
    """Variance of what a step adds to what was to be expected of it, in the variance that a history shows."""

    @classmethod
    def of(cls, residuals: Floats, samples: Ints, widened: float) -> Wandering:
        """From residuals (items × samples, oldest first) from each item's location, of so many samples each: the
        median of the items, less two standard errors of sqrt((1 - r²) / pairs) (Bartlett, 1946). Residuals from their
        own location look less correlated than they are, by (1 + 4 r) / n (Kendall, 1954)."""
        r, pairs = scale.lag_one(residuals)
        if not pairs:
            return cls(0.0, widened)
        n = float(np.median(samples))
        whole = float(np.clip((n * r + 1) / (n - 4), 0.0, 1.0))
        error = float(np.sqrt((1 - whole**2) / pairs))
        memory = float(np.clip(whole - 2 * error, 0.0, MOST))
        return cls(memory, widened, 1 + memory**2 - 2 * memory * min(r, memory))

    def sums(self, residuals: Floats) -> Floats:
        """As sequential.sums, less what was to be expected of the step before the first."""
        found = sequential.sums(residuals)
        if self.memory:
            before = sequential.WINDOWS[:-1]  # of the longest window it is not kept
            found[:, :-1] -= residuals[:, before] * self._expected[:-1]
        return found

    def factors(self, samples: Ints) -> Floats:
        """(items, windows): by how much such sums vary more than those of as many independent residuals from a
        baseline that is known, which the median of so many samples is not."""
        steps = sequential.WINDOWS
        if not self.memory:
            return scale.baseline_factor(steps, samples)
        n = np.maximum(samples, 2)[:, None].astype(np.float64)
        mean = self._mean_variance(n)
        shown = (1 - mean) / (1 - 1 / n)
        off = mean + (scale.MEDIAN_VARIANCE - 1) / n
        variance = self._given_the_step_before(shown) + np.square(steps - self._expected) * off / shown
        found: Floats = np.sqrt(variance / steps) / self.widened
        found[:, :_PLACE] = found[:, _PLACE, None]
        return found

    def bounded(self, residuals: Floats, before: Floats, clip: float, samples: Ints) -> Floats:
        """One residual of each item, winsorised around what was to be expected after the one before: two of any size in
        a row are worth what two of `clip` are of items without memory. One that is not known is as expected."""
        most = clip * self.factors(samples)[:, _PLACE] * 2 / (2 + self.memory) if self.memory else clip
        expected = self.memory * before
        found: Floats = np.clip(residuals, expected - most, expected + most)
        return np.where(np.isnan(found), expected, found)

    @property
    def _expected(self) -> Floats:
        """Of the sum over each window, in residuals of the step before it; of the longest none."""
        r, steps = self.memory, sequential.WINDOWS
        expected = r * (1 - r**steps) / (1 - r)
        return np.where(steps < steps[-1], expected, 0.0)

    def _given_the_step_before(self, shown: Floats) -> Floats:
        """Variance of the sum over each window, in that which a history shows, of which it is this share."""
        r, steps = self.memory, sequential.WINDOWS
        weights = (1 - r ** np.arange(1, steps[-1] + 1)) / (1 - r)
        given = self.surprise * np.cumsum(np.square(weights))[steps - 1]
        whole = np.square(steps) * self._mean_variance(steps.astype(np.float64)) / shown
        variance: Floats = np.where(steps < steps[-1], given, whole)
        return variance

    def _mean_variance(self, steps: Floats) -> Floats:
        """Of so many neighbouring steps, in that of a single one."""
        r = self.memory
        variance: Floats = ((1 + r) / (1 - r) - 2 * r * (1 - r**steps) / (steps * (1 - r) ** 2)) / steps
        return variance
