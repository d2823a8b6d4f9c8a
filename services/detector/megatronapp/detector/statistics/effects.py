"""Effects: how much an item's values lie above what is usual, and in how many of its steps."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats

SHOWN = 0.5
"""A step is slow when it lies nearer to the effect than to none."""
OUTLIERS = 2
"""Slow steps that may be chance, however slow (rules.base.PAGE_STEPS)."""


def typical(excess: Floats, smallest: float) -> float:
    """The median of an item's steps, nan: not measured. Where that is not worth a finding it may come and go: then the
    mean, without those that may be outliers."""
    known = np.sort(excess[np.isfinite(excess)])
    if not len(known):
        return np.nan
    median = float(np.median(known))
    return median if median >= smallest or len(known) <= OUTLIERS else float(np.mean(known[:-OUTLIERS]))


def shown(excess: Floats, effect: float) -> int:
    """Steps that show it."""
    return int(np.count_nonzero(excess >= SHOWN * effect))


def share(excess: Floats, effect: float) -> float:
    """Of the steps that show it; 1 where most do."""
    part = shown(excess, effect) / max(1, int(np.count_nonzero(np.isfinite(excess))))
    return part if 0 < part < SHOWN else 1.0
