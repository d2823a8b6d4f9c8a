"""Which step a rank is in, and how long steps take."""

from __future__ import annotations

import time

SHARE = 0.2
"""Of the newest step in the mean duration."""


class StepClock:
    def __init__(self) -> None:
        self.step = 0
        self.mean_seconds = 0.0
        """0 before the first step has ended."""
        self._begun = 0.0

    def begin(self, step: int) -> None:
        self.step, self._begun = step, time.perf_counter()

    def end(self) -> None:
        share = SHARE if self.mean_seconds else 1.0
        self.mean_seconds += share * (time.perf_counter() - self._begun - self.mean_seconds)
