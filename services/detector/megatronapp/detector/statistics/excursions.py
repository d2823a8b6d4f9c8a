"""Excursions: how long something that ends by itself lasts in a job, and from when on it no longer looks like that.

Lengths are taken as exponential: what goes on is as likely to end in the next step as it was in any before. Of such
excursions one in n outlives log(n) times their mean length. A mean is known from few: USUAL stands in for WEIGHT of
them, and gives way to what the job shows.
"""

from __future__ import annotations

import math

USUAL_STEPS = 10.0
"""Mean length before a job has shown its own: an H200 that nobody disturbed computed 2 % slower for ten steps now and
then, by its own recording."""
WEIGHT = 4.0
"""Excursions that this stands for: then a mean has a standard error of half of itself, and is worth no more."""
TOLD, PAGED = 1e2, 1e5
"""One in so many excursions that end by themselves is told, and wakes somebody. A job has hardly an excursion a step:
judge.STEPS_BETWEEN_FALSE_ALARMS."""


class Excursions:
    """Learns from those that have ended by themselves."""

    def __init__(self) -> None:
        self._ended, self._steps = WEIGHT, WEIGHT * USUAL_STEPS

    def learn(self, steps: int) -> None:
        """One has ended after so many steps."""
        self._ended += 1
        self._steps += steps

    def outlived_by_one_in(self, many: float) -> float:
        """Steps."""
        return self._steps / self._ended * math.log(many)
