"""Widening: by how much sums over steps vary more than if steps were independent, and items as even as they look.

Noise that wanders (temperature, a neighbour, data that grows longer for a while) makes sums over many steps far wider
than the scatter of single steps says, and devices differ in how noisy they are. Both show in the standardised sums
themselves: without a fault the sum over w steps of an item, divided by sqrt(w), has standard deviation 1. What it
really is, over the items of the job, tells by how much evidence must be discounted, window by window. It is taken at a
quantile, so that the few that are slow do not hide themselves; where most are slow all at once nobody is
extraordinary: then it is the model that is wrong, not most of the job.

Of few items the one that is slow would make its own slowness usual at that time: they are judged by what the job has
shown in many steps. How many that were says how well it is known, and a spread that is known from few sums is worth
less, by Student's t. So a small job waits until it can tell: sums over w steps count once it has shown some.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from megatronapp.detector.statistics import student
from megatronapp.detector.steps import Floats, Ints

QUANTILE = 0.8
"""A fifth of the items may be slow, as one node of five is, and the spread is still that of the others."""
NORMAL = 1.2816
"""What four fifths of a normal distribution's absolute values stay below, in standard deviations."""
MANY = 32
"""Items of which one step's distribution tells something: its quantile is known to a sixth."""
REMEMBERED, EVERY = 64, 8
"""Looks at the sums of many items, and steps from one to the next."""
REMEMBERED_STEPS = REMEMBERED * EVERY
"""Of few items, each step is looked at."""
SHORTEST = 3
"""Steps that make an alarm at the earliest (rules.base.PAGE_STEPS): how well sums over fewer are known helps nobody,
and were they worth more, two steps would do."""
HISTORY = 20
"""Steps from which an item's scale and serial correlation are known before its sums are looked at (monitor.WARM_UP)."""
HIDDEN = 6
"""Items of which the quantile leaves the largest out. Of fewer none tells while one of them is suspected."""


class Widening:
    def __init__(self, windows: Ints, log_threshold: float, *, certain: bool = True) -> None:
        """windows: steps of each. log_threshold: the evidence of an alarm. certain: few items wait until they can
        tell."""
        self._fewest = HIDDEN if certain else MANY
        self.factors: Floats = np.full(len(windows), np.inf)
        """Of each window; at least 1, inf where nothing is known yet."""
        self.spread: Floats = np.full(len(windows), np.inf)
        """The same, were it known for certain."""
        self.least = 1.0
        """By so much all evidence is discounted for want of steps that tell: what is winsorised may be so much larger,
        as a change far beyond everything that was seen is certain all the same."""
        self._windows = windows
        self._sigmas = student.sigmas(log_threshold)
        self._seen: deque[Floats] = deque(maxlen=REMEMBERED)
        self._until_next = 0
        self._steps = 0
        self._few: deque[tuple[Floats, Floats]] = deque()
        """Of each step, of each window that fitted in: the spread of the items' sums, and how many items they were."""
        self._spread, self._items, self._looks = (np.zeros(len(windows)) for _ in range(3))
        """Sums over those."""

    @classmethod
    def none(cls, windows: Ints) -> Widening:
        """Where sums are taken as they are."""
        widening = cls(windows, 1.0)
        widening.factors = widening.spread = np.ones(len(windows))
        return widening

    def observe(self, sums: Floats) -> None:
        """The standardised sums over each window of many items, before they are judged: (items, windows)."""
        now = spread_of(sums)
        if self._until_next <= 0:
            self._until_next = EVERY
            self._seen.append(now)
        self._until_next -= 1
        self.factors = self.spread = np.maximum(1.0, np.maximum(np.mean(self._seen, axis=0), now))
        self.least = 1.0

    def learn(self, sums: Floats, *, suspected: bool) -> None:
        """The same of few items, after they have been judged. suspected: one of them may be slow."""
        if not len(sums):
            return
        if suspected and len(sums) < self._fewest:
            self._of_hardly_any(np.maximum(1.0, self._spread / np.maximum(self._looks, 1.0)))
            return
        self._steps += 1
        whole = self._windows <= self._steps
        self._remember(np.where(whole, spread_of(sums), 0.0), np.where(whole, len(sums), 0.0))
        seen = np.maximum(1.0, self._spread / np.maximum(self._looks, 1.0))
        if len(sums) < self._fewest:
            self._of_hardly_any(seen)
            return
        # Sums that have no step in common are samples of their own, as are those that the scale was learnt from.
        samples = (self._items + HISTORY * len(sums)) / np.maximum(self._windows, SHORTEST)
        self.spread = np.where(whole, seen, np.inf)
        self.factors = self.spread * student.quantile(self._sigmas, samples) / self._sigmas
        self.least = float(self.factors.min())

    def _of_hardly_any(self, seen: Floats) -> None:
        """They have nobody to learn from but the one that may be slow, and would wait for hundreds of steps, or what is
        looked for is no larger than the noise: their own sums tell, once all windows have fitted in."""
        self.spread = seen if self._steps >= self._windows[-1] else np.ones(len(seen))
        self.factors, self.least = self.spread, 1.0

    def _remember(self, spread: Floats, items: Floats) -> None:
        self._few.append((spread, items))
        self._add(spread, items, 1.0)
        if len(self._few) > REMEMBERED_STEPS:
            self._add(*self._few.popleft(), -1.0)

    def _add(self, spread: Floats, items: Floats, one: float) -> None:
        self._spread += one * spread
        self._items += one * items
        self._looks += one * (items > 0)


def spread_of(sums: Floats) -> Floats:
    """Standard deviation of each column, by a quantile of the absolute values."""
    place = int(QUANTILE * len(sums))
    spread: Floats = np.partition(np.abs(sums.T), place, axis=1)[:, place] / NORMAL
    return spread
