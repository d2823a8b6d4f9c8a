"""Outrun: ranks that look slower beside others since these have become faster, and are as fast as ever themselves.

Of two nodes nobody can tell which is usual where one of them was slow in all of the job's first steps: both are
compared with the middle between them. When that one recovers, the other looks slower by as much. What tells is the
rank's own passes, against nothing but their past: they do not take longer. Such a rank has no past to be compared with,
and begins one.

So it is with what ranks spend beside compute: a device that becomes slow has its work enqueued in time, and its host's
share of the step is gone. Beside it the others' hosts stand still for as long as ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from megatronapp.detector.statistics import effects
from megatronapp.detector.statistics.monitor import LASTING, RECENT, Monitor
from megatronapp.detector.statistics.scale import location
from megatronapp.detector.statistics.window import Window
from megatronapp.detector.steps import Floats, Ints

AGREE = 0.3
"""Of what a rank is slower than others it must have become slower itself by at least this share, and the other way
round. All of it is shown by a rank that has become slower, none by one that was outrun; with 0.1 and 0.2 the same 12
simulated jobs are judged alike (`python -m bench.scale.constants --only AGREE --trials 2`; larger values were not
tried)."""
KNOWN_STEPS = 3
"""Before the onset that tell what was usual: their median is no outlier."""


class Outrun:
    def __init__(self) -> None:
        self._own = Window(RECENT, np.nan)
        self._alarmed: dict[str, npt.NDArray[np.bool_]] = {}

    def observe(self, ranks: Ints, own: Floats, monitors: Mapping[str, Monitor]) -> None:
        """own: what each rank shows for itself, in the monitors' unit, by the step that these have seen last: of its
        speed how much longer its passes take than its first ones did (log-ratio). Ranks that were outrun are taken from
        the monitors."""
        self._grow(int(ranks.max(initial=-1)) + 1)
        values = np.full(len(self._own.rows), np.nan)
        values[ranks] = own
        self._own.push(values)
        outrun = {
            rank
            for signal, monitor in monitors.items()
            for rank in self._newly_alarmed(signal, monitor)
            if self._is_outrun(rank, monitor)
        }
        for monitor in monitors.values() if outrun else ():
            monitor.forget(np.array([rank for rank in sorted(outrun) if rank < len(monitor)], np.int64))

    def _newly_alarmed(self, signal: str, monitor: Monitor) -> list[int]:
        now, before = monitor.alarmed.copy(), self._alarmed.get(signal, np.zeros(0, bool))
        self._alarmed[signal] = now
        new = now.copy()
        new[: len(before)] &= ~before
        return [rank for rank in np.flatnonzero(new).tolist() if rank < len(self._own.rows)]

    def _is_outrun(self, rank: int, monitor: Monitor) -> bool:
        """Beside others it has become slower, by itself it has not. A device that was as slow beside them before the
        alarm's onset, whose estimate is late where the effect is small, has always been slow."""
        steps, effect = monitor.steps_since(rank), float(monitor.effect[rank])
        own = _rise(self._own.rows[rank], steps, monitor.noise.smallest)
        beside_others = _rise(monitor.excess(rank), steps, monitor.noise.smallest)
        return own < AGREE * effect and beside_others >= effects.SHOWN * effect

    def _grow(self, size: int) -> None:
        more = size - len(self._own.rows)
        if more > 0:
            self._own.grow(more)


def _rise(values: Floats, steps: int, smallest: float) -> float:
    """By how much the newest steps lie above those before them, newest first; nan where these are too few to tell."""
    after, before = values[:steps], values[steps : steps + LASTING]
    if np.count_nonzero(np.isfinite(before)) < KNOWN_STEPS or not np.isfinite(after).any():
        return np.nan
    return effects.typical(after - location(before[None])[0], smallest)
