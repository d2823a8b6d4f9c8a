"""The same microbatch on other stages: how heavy it is, without being told its tokens."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.signals import peers
from megatronapp.detector.statistics.scale import MAD_TO_SIGMA
from megatronapp.detector.steps import Floats, Ints, Microbatches

NOISE = 0.005
"""Standard deviation of equal microbatches on one device. Where microbatches differ by no more, a fit says nothing."""
FAR = 4.0
"""Microbatches so many scales off a fit are left out of the next."""
FITS = 4
"""Each without what lay far off the one before."""
TELLING = 2 * NOISE
"""Largest standard error of a replica's median with which one stage alone is judged."""
MEDIAN_OVER_MEAN = 1.25
"""Standard error of a median over that of a mean."""
LEAST = 0.1
"""A microbatch is never expected to take less than this share of the median one."""


def expected_share(detail: Microbatches) -> Floats:
    """(stages, microbatches): time expected of each microbatch ÷ its stage's median, from its times on other stages.

    Time grows with a microbatch's length on every stage, but each stage has a constant part of its own (the last one
    the vocabulary's logits): the share is a straight line in the other stages' median share. Its slope is fitted to
    differences within replicas, where a slow device cancels out. nan where no other stage tells; with one stage only it
    is 1, or nan when a replica's microbatches differ so much that their median says little of the device.
    """
    with np.errstate(invalid="ignore"):
        share = detail.compute / np.nanmedian(detail.compute, axis=1, keepdims=True)
    others = peers.median_of_others(share, np.ones(len(share), bool))
    if len(share) == 1:
        return np.full_like(share, 1.0 if _typical_error(share[0], detail) <= TELLING else np.nan)
    slopes = np.array([_slope(own, other, detail) for own, other in zip(share, others, strict=True)])
    expected: Floats = np.maximum(1.0 + slopes[:, None] * (others - 1.0), LEAST)
    return expected


def _typical_error(share: Floats, detail: Microbatches) -> float:
    """Standard error of a replica's median share, from how much its microbatches differ."""
    known = np.isfinite(share)
    if not known.any():
        return np.inf
    _, replica = np.unique(detail.replica[known], return_inverse=True)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(_within(share[known], replica))))
    return MEDIAN_OVER_MEAN * spread / float(np.sqrt(np.median(np.bincount(replica))))


def _slope(own: Floats, others: Floats, detail: Microbatches) -> float:
    """Least squares with outliers left out, drawn to 1 as far as microbatches do not differ."""
    known = np.isfinite(own) & np.isfinite(others)
    _, replica = np.unique(detail.replica[known], return_inverse=True)
    y, x = _within(own[known], replica), _within(others[known], replica)
    slope = 1.0
    for _ in range(FITS if len(x) else 0):
        residual = np.abs(y - slope * x)
        used = residual <= FAR * max(float(np.median(residual)), NOISE)
        damping = NOISE**2 * used.sum()
        slope = float((x[used] @ y[used] + damping) / (x[used] @ x[used] + damping))
    return slope


def _within(values: Floats, replica: Ints) -> Floats:
    """Values less their replica's median."""
    less = values.copy()
    for each in np.unique(replica):
        less[replica == each] -= np.median(values[replica == each])
    return less
