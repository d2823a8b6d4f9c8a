"""Offsets: by how much a healthy item may differ from its peers for good, by what the job itself shows."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from megatronapp.detector.statistics import scale, student
from megatronapp.detector.statistics.widening import MANY, spread_of
from megatronapp.detector.steps import Floats

SPREADS = 100
"""Jobs of healthy items alone, in one of which the largest offset would reach the allowance."""


def allowance(offsets: Floats, prior: float) -> Floats:
    """Of each item, that of one in SPREADS jobs whose items' offsets are normal, and vary as much as these do.

    The spread of many is taken at a quantile (spread_of). Of few the one that is slow would make its own slowness
    usual: it is held against the standard deviation of the others, by Student's t. Few tell little, and are never
    allowed more than the prior.
    """
    n = len(offsets)
    usual = NormalDist().inv_cdf(1 - 1 / (SPREADS * max(n, 1)))
    if n >= MANY:
        return np.full(n, usual * float(spread_of(offsets[:, None])[0]))
    freedom = n - 2
    if freedom < 2:
        return np.full(n, prior)
    deviation = offsets - np.median(offsets)
    others = np.sqrt((np.sum(deviation**2) - deviation**2) / freedom)
    allowed: Floats = np.minimum(student.quantile(usual, freedom) * others, prior)
    return allowed


def early_scale(values: Floats, prior: float) -> float:
    """Standard deviation of a step, while items have no history: from how much each differs from the step before.

    values (items × steps). The prior stands for POOLED samples beside these.
    """
    jumps = np.abs(np.diff(values, axis=1))
    known = jumps[np.isfinite(jumps)]
    if not len(known):
        return prior
    shown = scale.MAD_TO_SIGMA * float(np.median(known)) / np.sqrt(2)
    samples = np.array([len(known) + scale.POOLED])
    drawn = np.sqrt((len(known) * shown**2 + scale.POOLED * prior**2) / samples)
    return float(scale.upper_bound(drawn, samples)[0])
