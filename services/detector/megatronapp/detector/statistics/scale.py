"""Robust location, scale and serial correlation of many short series at once."""

from __future__ import annotations

import math

import numpy as np

from megatronapp.detector.steps import Floats, Ints

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MAD_ERROR = 1.17
"""Relative standard error of that estimate, times the root of its samples (Rousseeuw & Croux, 1993)."""
TAIL = 0.95
"""Quantile that tells of the upper tail: of CLEAN steps three lie above, so that one outlier is none."""
TAIL_TO_SIGMA = 0.61
"""A normal distribution's standard deviation over its 95th percentile."""
MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median over that of a mean, of many normal samples."""
POOLED = 20
"""Samples that the median item's scale stands for: as many as make a history of their own (monitor.WARM_UP)."""
MAX_CORRELATION = 0.8
"""More cannot be told from a trend within CLEAN steps, of which 64 × (1 - 0.8) / (1 + 0.8) = 7 are then independent."""
KNOWN_PAIRS = 8
"""Steps with one before them from which an item's correlation is taken."""


def location(series: Floats) -> Floats:
    """Median of each row of series (items × samples), nan where a row holds no number."""
    return _median_rows(series)


def scale(series: Floats, center: Floats) -> Floats:
    """Standard deviation of each row by its median absolute deviation from center, one a row."""
    return MAD_TO_SIGMA * _median_rows(np.abs(series - center[:, None]))


def tail(series: Floats, center: Floats) -> Floats:
    """The same by how far the largest twentieth lies above center: the median tells nothing of noise that is nothing in
    most steps and much in some."""
    ordered = np.sort(series, axis=1)
    last = np.maximum(np.isfinite(ordered).sum(axis=1) - 1, 0)
    largest: Floats = ordered[np.arange(len(ordered)), np.round(TAIL * last).astype(np.int64)]
    return TAIL_TO_SIGMA * (largest - center)


def pooled(sigma: Floats, samples: Ints) -> Floats:
    """Each item's standard deviation drawn towards the median item's, and never below that: as if POOLED samples of
    the median item had been seen too (empirical Bayes, Smyth 2004)."""
    usual = float(np.median(sigma))
    drawn = np.sqrt((samples * sigma**2 + POOLED * usual**2) / (samples + POOLED))
    return np.maximum(drawn, usual)


def pooled_by_kind(sigma: Floats, samples: Ints, kinds: Ints) -> Floats:
    """The same where items of one kind vary alike, and those of another may vary less, or not at all: no less than
    among its own kind. kinds: any number for each item."""
    together = pooled(sigma, samples)
    for kind in np.unique(kinds):
        alike = kinds == kind
        together[alike] = np.maximum(together[alike], pooled(sigma[alike], samples[alike]))
    return together


def baseline_factor(steps: Ints, samples: Ints) -> Floats:
    """(items, steps): by how much a sum over so many steps of residuals from a median of so many samples varies more
    than one of residuals from what is really usual, which is off by the same in all of them."""
    return np.sqrt(1.0 + MEDIAN_VARIANCE * steps / np.maximum(samples, 1)[:, None])


def upper_bound(sigma: Floats, samples: Ints) -> Floats:
    """What a standard deviation estimated from so many samples hardly exceeds.

    The relative standard error of an estimate by the median absolute deviation is 1.17 / sqrt(n) for normal noise
    (Rousseeuw & Croux, 1993: efficiency 37 %); the bound is three quarters of it above, as false
    alarms come from scales taken too small after a short history.
    """
    bound: Floats = sigma * (1.0 + 0.75 * MAD_ERROR / np.sqrt(np.maximum(samples, 1)))
    return bound


def correlation_factor(residuals: Floats) -> float:
    """By how much serial correlation widens the mean of many samples, against independent ones; 1 to 3.

    residuals (items × samples, oldest first). From their lag-1 correlation r, less two standard errors of independent
    ones: sqrt((1 + r) / (1 - r)), as for a first-order autoregression.
    """
    r, pairs = lag_one(residuals)
    if not pairs:
        return 1.0
    r = float(np.clip(r - 2.0 / np.sqrt(pairs), 0.0, MAX_CORRELATION))
    return float(np.sqrt((1 + r) / (1 - r)))


def lag_one(residuals: Floats) -> tuple[float, int]:
    """Correlation of neighbouring samples (items × samples, oldest first), the median of the items' winsorised product
    moments, and the pairs that it comes from; 0 of 0 pairs where it is not known."""
    spread = MAD_TO_SIGMA * _median_rows(np.abs(residuals))
    bounded = np.clip(residuals / np.where(spread > 0, spread, np.nan)[:, None], -3.0, 3.0)
    seen = np.isfinite(bounded)
    both = seen[:, :-1] & seen[:, 1:]
    pairs = both.sum(axis=1)
    filled = np.where(seen, bounded, 0.0)
    before, after = filled[:, :-1], filled[:, 1:]
    product = np.einsum("ij,ij->i", before, after)
    power = np.einsum("ij,ij->i", before, before * both)
    known = (pairs >= KNOWN_PAIRS) & (power > 0)
    if not known.any():
        return 0.0, 0
    return float(np.median(product[known] / power[known])), int(pairs[known].sum())


def _median_rows(series: Floats) -> Floats:
    """Median of each row, leaving out nan; sorting beats numpy.nanmedian by far on short rows."""
    ordered = np.sort(series, axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(len(series))
    low, high = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, np.minimum(count // 2, series.shape[1] - 1)]
    return np.where(count > 0, (low + high) / 2, np.nan)
