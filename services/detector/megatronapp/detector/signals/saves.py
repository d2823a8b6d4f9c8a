"""Saves: how long each rank writes its part of a checkpoint, against its own earlier ones.

Ranks write unequal amounts (of a replicated weight one rank writes all), so only a rank's own past is a measure of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector.steps import Floats, StepTable

LEARNT = 3
"""Saves after which a rank's usual time is known."""
KEPT = 16
"""Newest saves that tell what is usual, as of a save's pauses (patience.KEPT_OTHER)."""
SMALL = 0.1
"""Share of the longest usual write that counts as nothing: who writes a few bytes makes nobody wait."""
HEAVY = 0.5
"""Ranks that usually write for this share of the longest one's time tell how fast storage is that all share."""


@dataclass(frozen=True, slots=True)
class SaveEffect:
    """Of one save: log(time of the write ÷ its usual time)."""

    of_ranks: Floats
    """One entry a rank; nan: no write, or too few before."""
    of_all: float
    """What all heavy writers share; nan where there are not two."""
    beside: Floats
    """of_ranks less what the other heavy writers share."""


class Saves:
    """What is known of a job's saves; one per attempt."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._steps: deque[int] = deque(maxlen=KEPT)
        self.lost: dict[int, float] = {}
        """Seconds that each rank's newest write took beyond its usual, where that is known."""

    @property
    def interval_steps(self) -> float:
        """Steps from one save to the next."""
        return float(np.median(np.diff(self._steps))) if len(self._steps) > 1 else np.inf

    def effect(self, table: StepTable) -> SaveEffect:
        """Of the save that the step tells of."""
        seconds, usual = _written(table), self._usual(table)
        self._steps.append(table.step)
        self.lost = dict(zip(table.ranks.rank.tolist(), (seconds - usual).tolist(), strict=True))
        longest = float(np.nanmax(usual, initial=0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            of_ranks: Floats = np.log(seconds + SMALL * longest) - np.log(usual + SMALL * longest)
        heavy = np.flatnonzero((usual >= HEAVY * longest) & np.isfinite(of_ranks))
        shared = [max(float(of_ranks[heavy[heavy != rank]].min(initial=np.inf)), 0.0) for rank in range(len(of_ranks))]
        of_all = float(of_ranks[heavy].min()) if len(heavy) > 1 else np.nan
        return SaveEffect(of_ranks, of_all, of_ranks - np.where(np.isfinite(shared), shared, 0.0))

    def learn(self, table: StepTable, usual: npt.NDArray[np.bool_]) -> None:
        """Take in the writes of the ranks that are marked as usual."""
        for rank, seconds in zip(table.ranks.rank[usual].tolist(), _written(table)[usual].tolist(), strict=True):
            if seconds > 0:
                self._seconds.setdefault(rank, deque(maxlen=KEPT)).append(seconds)

    def _usual(self, table: StepTable) -> Floats:
        known = (self._seconds.get(int(rank), ()) for rank in table.ranks.rank)
        return np.array([np.median(earlier) if len(earlier) >= LEARNT else np.nan for earlier in known])


def _written(table: StepTable) -> Floats:
    rows = table.rows
    if SpanName.CHECKPOINT_WRITE not in table.operations:
        return np.full(len(table.ranks), np.nan)
    mine = rows.operation == table.operations.index(SpanName.CHECKPOINT_WRITE)
    seconds = np.bincount(rows.rank[mine], rows.duration[mine], minlength=len(table.ranks)).astype(np.float64)
    return np.where(seconds > 0, seconds, np.nan)
