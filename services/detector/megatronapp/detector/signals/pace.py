"""By how much the job's steps are longer since something began."""

from __future__ import annotations

from collections import deque

import numpy as np

KEPT = 256
LEAST = 3
"""Steps before and since; of fewer nothing is said."""


class Pace:
    def __init__(self) -> None:
        self._steps = deque[tuple[int, float]](maxlen=KEPT)

    def note(self, step: int, seconds: float) -> None:
        if np.isfinite(seconds):
            self._steps.append((step, seconds))

    def slowdown(self, since: int) -> float:
        """Median step since then over the median before; 1 at least, and where too few are known."""
        before = [seconds for step, seconds in self._steps if step < since]
        after = [seconds for step, seconds in self._steps if step >= since]
        if min(len(before), len(after)) < LEAST:
            return 1.0
        return max(1.0, float(np.median(after) / max(float(np.median(before)), 1e-9)))
