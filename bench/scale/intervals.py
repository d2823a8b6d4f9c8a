"""Intervals of 95 %: exact ones of a rate and of a share, and that of a median by order statistics. No library of ours
has them, and each is a few lines."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

TAIL = 0.025
Interval = tuple[float, float]


def poisson(events: int) -> Interval:
    """Of the mean of a count (Garwood, 1936)."""
    most = events + 10 * math.sqrt(events + 4) + 10
    low = 0.0 if events == 0 else _falling(lambda mean: _poisson_cdf(events - 1, mean), 1 - TAIL, most)
    return low, _falling(lambda mean: _poisson_cdf(events, mean), TAIL, most)


def share(hits: int, trials: int) -> Interval:
    """Of a probability (Clopper & Pearson, 1934)."""
    if not trials:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else _falling(lambda p: _binomial_cdf(hits - 1, trials, p), 1 - TAIL, 1.0)
    high = 1.0 if hits == trials else _falling(lambda p: _binomial_cdf(hits, trials, p), TAIL, 1.0)
    return low, high


def median(values: Sequence[float]) -> Interval:
    """From the smallest to the largest value where they are too few to say more."""
    ordered, n = sorted(values), len(values)
    if not n:
        return math.nan, math.nan
    left_out = next(k for k in range(n + 1) if _binomial_cdf(k, n, 0.5) > TAIL)
    return ordered[max(left_out - 1, 0)], ordered[min(n - left_out, n - 1)]


def share_text(hits: int, trials: int) -> str:
    """A share for people."""
    low, high = share(hits, trials)
    return f"{hits} of {trials} ({low:.2f} … {high:.2f})" if trials else "–"


def median_text(values: Sequence[float], form: str = ".1f") -> str:
    """A median for people."""
    low, high = median(values)
    return f"{statistics.median(values):{form}} ({low:{form}} … {high:{form}})" if values else "–"


def _falling(function: Callable[[float], float], value: float, most: float) -> float:
    """Where a function that falls from 1 at 0 passes a value."""
    low, high = 0.0, most
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > value else (low, middle)
    return (low + high) / 2


def _poisson_cdf(events: int, mean: float) -> float:
    if mean == 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1))


def _binomial_cdf(hits: int, trials: int, p: float) -> float:
    if p <= 0 or p >= 1:
        return float(p <= 0 or hits >= trials)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(p) + (trials - k) * math.log1p(-p)
        )
        for k in range(hits + 1)
    )
