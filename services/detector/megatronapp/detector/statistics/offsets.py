"""Offsets: by how much a healthy item may differ from its peers for good, by what the job itself shows."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from megatronapp.detector.statistics import scale, student
from megatronapp.detector.statistics.widening import MANY, spread_of
from megatronapp.detector.steps import Floats

SPREADS = 1000
"""Jobs of healthy items alone, in one of which the largest offset would reach the allowance; of those that are new, in
all their first steps, in which nothing else tests them."""
FEW_SPREADS = 100
"""The same of few items: by how much these differ is known so badly that more would hide 3 % of one of eight."""
LOOKS = {5: 0.05, 8: 0.05, 12: 0.1, 16: 0.1, 24: 0.35, 48: 0.35}
"""By the number of values, the share of that one job that each look has (alpha spending: Lan and DeMets, Biometrika
70, 1983), as each could find what is none: early ones are for what is far off, late ones for what is as little off as
can be told. The same job's medians hardly change, so that as many looks of equal shares would waste most of it."""
NEW_STEPS = min(LOOKS)
"""Of the median of so few values two outliers move nothing."""
SLOWEST = (0.95, 0.99)
"""Quantiles that tell whether the tail of slow ones is a normal one."""
SLOWER_STILL = 3
"""Items beyond such a quantile, so that one or two slow ones do not make it."""
NORMAL_TAIL = 1.3
"""A tail that is wider by more is not normal: the least quantile is known to a sixth, of 64 items."""
SAMPLED = 256
"""Items that are looked at: their steps' noise is then known to a fiftieth."""
ENOUGH = 8
"""Values from which a median's variance is that of many samples, to a tenth."""


def allowance(offsets: Floats, prior: float, uncertainty: float = 0.0) -> Floats:
    """Of each item, that of one in SPREADS jobs (FEW_SPREADS of few items) whose offsets are normal, and vary as much
    as these do.

    uncertainty: standard deviation with which each offset is known; of many items it is taken from their spread, as the
    steps' noise is the test's matter.

    The spread of many is taken at a quantile (spread_of). Of few the one that is slow would make its own slowness
    usual: it is held against the standard deviation of the others, by Student's t. Few tell little, and are never
    allowed more than the prior.
    """
    n = len(offsets)
    usual = NormalDist().inv_cdf(1 - 1 / ((SPREADS if n >= MANY else FEW_SPREADS) * max(n, 1)))
    if n >= MANY:
        spread = float(spread_of(offsets[:, None])[0])
        return np.full(n, usual * math.sqrt(max(0.0, spread**2 - uncertainty**2)))
    freedom = n - 2
    if freedom <= student.LEAST_FREEDOM:
        return np.full(n, prior)
    deviation = offsets - np.median(offsets)
    others = np.sqrt((np.sum(deviation**2) - deviation**2) / freedom)
    allowed: Floats = np.minimum(student.quantile(usual, freedom) * others, prior)
    return allowed


def extraordinary(values: Floats, share: float) -> npt.NDArray[np.bool_]:
    """Of many items that are all new, those whose median lies where neither the offsets nor the steps of healthy ones
    would bring it in one of SPREADS, in all looks together.

    values (items × steps): the newest first; nan: not measured. share: that this look has, of LOOKS. An offset is
    judged by how the items' medians scatter, as normal: how few steps they were taken from is in that. Steps are judged
    by how many values of the others reach as far. Nobody, where medians are not normal: where work differs and nobody
    says so, some ranks have much more of it for a while.
    """
    offsets = scale.location(values)
    n = len(offsets)
    spreads = _spreads(np.sort(offsets))
    if n < MANY or len(spreads) == 1 or max(spreads) > NORMAL_TAIL * spreads[0]:
        return np.zeros(n, bool)
    chance = share / (SPREADS * n)
    beyond: npt.NDArray[np.bool_] = offsets >= NormalDist().inv_cdf(1 - chance) * max(spreads)
    for item in np.flatnonzero(beyond).tolist():
        beyond[item] = _goes_on(values[item], offsets[item]) and _of_steps(values, item, offsets[item]) < chance
    return beyond


def _goes_on(values: Floats, offset: float) -> bool:
    """Whether an item's newest steps are closer to its offset than to none: what was a burst does not last."""
    measured = values[np.isfinite(values)]
    newest = measured[: min(NEW_STEPS, (len(measured) + 1) // 2)]
    return float(np.median(newest)) >= offset / 2


def _of_steps(values: Floats, item: int, offset: float) -> float:
    """The probability of a median as large by steps alone: at least half of them reach as far, each of them as often as
    the other items' do (binomial)."""
    steps = int(np.count_nonzero(np.isfinite(values[item])))
    others = np.delete(values, item, axis=0)
    reached = (np.count_nonzero(others >= offset) + 1) / (np.count_nonzero(np.isfinite(others)) + 1)
    half = (steps + 1) // 2
    return sum(math.comb(steps, k) * reached**k * (1 - reached) ** (steps - k) for k in range(half, steps + 1))


def _spreads(ordered: Floats) -> list[float]:
    """Standard deviation, by a quantile of all, and by quantiles of the slowest of which enough are slower still."""
    n = len(ordered)
    slowest = [level for level in SLOWEST if n * (1 - level) >= SLOWER_STILL]
    of_all = [float(spread_of(ordered[:, None])[0])] if n else [0.0]
    return of_all + [float(ordered[int(level * n)]) / NormalDist().inv_cdf(level) for level in slowest]


def uncertainty(values: Floats) -> float:
    """Standard deviation with which a row's median is known, from how much values differ from those of the step before:
    what wanders, or differs for good, is no noise of single steps. 0 where values are few.

    values (items × steps): items that vary alike.
    """
    few = values[:: max(1, len(values) // SAMPLED)]
    known = int(np.count_nonzero(np.isfinite(few).any(axis=0)))
    jumps = _jumps(few)
    if known < ENOUGH or not len(jumps):
        return 0.0
    return math.sqrt(scale.MEDIAN_VARIANCE / known) * _of_jumps(jumps)


def _jumps(values: Floats) -> Floats:
    jumps: Floats = np.abs(np.diff(values, axis=1))
    return jumps[np.isfinite(jumps)]


def _of_jumps(jumps: Floats) -> float:
    """Standard deviation of a value."""
    return scale.MAD_TO_SIGMA * float(np.median(jumps)) / math.sqrt(2)


def early_scale(values: Floats, prior: float) -> float:
    """Standard deviation of a step, while items have no history: from how much each differs from the step before.

    values (items × steps). The prior stands for POOLED samples beside these.
    """
    known = _jumps(values)
    if not len(known):
        return prior
    shown = _of_jumps(known)
    samples = np.array([len(known) + scale.POOLED])
    drawn = np.sqrt((len(known) * shown**2 + scale.POOLED * prior**2) / samples)
    return float(scale.upper_bound(drawn, samples)[0])
