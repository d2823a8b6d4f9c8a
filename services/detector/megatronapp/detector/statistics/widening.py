"""Widening: by how much sums over steps vary more than if steps were independent, and items as even as they look.

Noise that wanders (temperature, a neighbour, data that grows longer for a while) makes sums over many steps far wider
than the scatter of single steps says, and devices differ in how noisy they are. Both show in the standardised sums
themselves: without a fault the sum over w steps of an item, divided by sqrt(w), has standard deviation 1. What it
really is, over the items of the job, tells by how much evidence must be discounted, window by window. It is taken at a
quantile, so that the few that are slow do not hide themselves; where most are slow all at once nobody is
extraordinary: then it is the model that is wrong, not most of the job.

Of few items the one that is slow would make its own slowness usual at that time: they are judged by what the job has
shown in many steps.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from megatronapp.detector.steps import Floats

QUANTILE = 0.8
"""A fifth of the items may be slow, as one node of five is, and the spread is still that of the others."""
NORMAL = 1.2816
"""What four fifths of a normal distribution's absolute values stay below, in standard deviations."""
MANY = 32
"""Items of which one step's distribution tells something: its quantile is known to a sixth."""
REMEMBERED, EVERY = 64, 8
"""Looks at the sums, and steps from one to the next."""
TELLING = 8
"""Looks at few items that tell something: two items have then shown sixteen sums."""


class Widening:
    def __init__(self, windows: int) -> None:
        self.factors: Floats = np.ones(windows)
        """Of each window; at least 1."""
        self._seen: deque[Floats] = deque(maxlen=REMEMBERED)
        self._until_next = 0

    def observe(self, sums: Floats) -> None:
        """The standardised sums over each window, of the items that are measured: (items, windows)."""
        if not len(sums):
            return
        now = spread_of(sums)
        if self._until_next <= 0:
            self._until_next = EVERY
            self._seen.append(now)
        self._until_next -= 1
        if len(sums) >= MANY:
            self.factors = np.maximum(1.0, np.maximum(np.mean(self._seen, axis=0), now))
        elif len(self._seen) >= TELLING:
            self.factors = np.maximum(1.0, np.mean(self._seen, axis=0))


def spread_of(sums: Floats) -> Floats:
    """Standard deviation of each column, by a quantile of the absolute values."""
    place = int(QUANTILE * len(sums))
    spread: Floats = np.partition(np.abs(sums.T), place, axis=1)[:, place] / NORMAL
    return spread
