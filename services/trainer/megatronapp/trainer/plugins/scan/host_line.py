"""Where a GPU's clock stands on the host's: a line through the last reference events. Pure.

A bracket (host time before an event's enqueue and after its completion was seen) tells the event's host time to a few
microseconds, which wander from step to step. The two clocks run evenly, so a line through many brackets tells it
better. The native recorder has the same in C++.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

MOST = 64
SPAN_NS = 60_000_000_000
WIDE = 1.5
"""Brackets wider than the narrowest by this factor were disturbed."""
JITTER = 0.25
"""How an event lies within its bracket, over half the bracket's width."""
DRIFT_PRIOR = 50e-6
"""Relative speed of the two clocks before it is known."""


class Bracket(NamedTuple):
    """One reference event: the device's time of it, and the host's before and after."""

    device_ns: int
    before_ns: int
    after_ns: int

    @property
    def middle_ns(self) -> int:
        return self.before_ns + (self.after_ns - self.before_ns) // 2

    @property
    def half_ns(self) -> float:
        return max(1.0, (self.after_ns - self.before_ns) / 2)


class Placed(NamedTuple):
    """An event on the host's clock: its time, half the width of the narrowest bracket used, and by how much the host's
    clock runs faster than the device's."""

    host_ns: int
    error_ns: int
    drift: float

    def after(self, device_ns: int) -> int:
        """Host time of what the device passes so much later (or earlier)."""
        return self.host_ns + device_ns + round(self.drift * device_ns)


class HostLine:
    def __init__(self) -> None:
        self._brackets: deque[Bracket] = deque()

    def place(self, newest: Bracket) -> Placed:
        """Take the newest bracket, and place its event."""
        known = self._brackets
        while known and (len(known) >= MOST or newest.device_ns - known[0].device_ns > SPAN_NS):
            known.popleft()
        known.append(newest)
        half = np.array([bracket.half_ns for bracket in known])
        narrowest = float(half.min())
        # Weighted least squares of (host - device) over the device's time, both counted from the newest.
        x = np.array([bracket.device_ns - newest.device_ns for bracket in known], np.float64)
        y = np.array([bracket.middle_ns - newest.middle_ns for bracket in known], np.float64) - x
        weight = np.where(half > WIDE * narrowest, 0.0, 1 / (JITTER * half) ** 2)
        w, wx, wy = weight.sum(), (weight * x).sum(), (weight * y).sum()
        wxx, wxy = (weight * x * x).sum() + 1 / DRIFT_PRIOR**2, (weight * x * y).sum()
        determinant = w * wxx - wx * wx
        offset = float((wy * wxx - wx * wxy) / determinant)
        if abs(offset) > newest.half_ns:
            # Outside of its own bracket: a clock was set, or the machine slept. What was learnt is void.
            self._brackets = deque([newest])
            return Placed(newest.middle_ns, int(newest.half_ns), 0.0)
        drift = float((w * wxy - wx * wy) / determinant)
        return Placed(newest.middle_ns + round(offset), int(narrowest), drift)
