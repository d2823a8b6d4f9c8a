"""A sequential test for "this item has become slower" that may be looked at after every step.

The statistic is a CUSUM of mixture e-processes (Shin, Ramdas, Rinaldo: E-detectors, 2022; the normal mixture is
Robbins' 1970): for a start w steps ago with sum S of standardised residuals,

    log E_w = tau² S² / (2 (1 + w tau²)) - log(1 + w tau²) / 2        for S > 0,

and the detector is the largest over starts. Alarming at log E >= log(n) keeps the mean number of steps between false
alarms above n. The start that wins is the estimate of the onset.

Why an e-process: E_w is the likelihood of the residuals under a shift of unknown size (normal with deviation tau)
over that under none. Under none its mean is at most 1 at every step, whenever one looks; a test with a fixed number
of steps would have to be corrected for each look. Only starts in WINDOWS are tried, so that a step costs a few sums
for all items.
"""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats, Ints

WINDOWS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64])
"""Starts that are tried, in steps ago; within the last a shift that shows in every fourth step alone is found."""
TAU = 2.0
"""Expected size of a shift in standard deviations: the smallest worth a finding is 2 % where a step varies by 1 %, as
on GPUs before their own scale is known (profiles.py). The mixture is over all sizes, so that it hardly matters."""


def sums(residuals: Floats) -> Floats:
    """Over each of WINDOWS, of each item.

    residuals (items × WINDOWS[-1]): standardised, winsorised, the newest first; 0 where nothing was measured.
    """
    newest_first, of_windows = residuals.T, np.empty((len(WINDOWS), len(residuals)))
    total, begin = np.zeros(len(residuals)), 0
    for row, end in zip(of_windows, WINDOWS.tolist(), strict=True):
        total = np.add(total, newest_first[begin:end].sum(axis=0), out=row)
        begin = end
    return of_windows.T


def evidence(sums: Floats) -> Floats:
    """Log evidence of a rise, one for each item, by its sums over WINDOWS."""
    log_e: Floats = _log_mixture(sums.T, WINDOWS[:, None]).max(axis=0)
    return log_e


def needed(log_threshold: float) -> Floats:
    """The sum over each of WINDOWS that reaches the threshold."""
    spread = 1.0 + WINDOWS * TAU**2
    sums: Floats = np.sqrt((log_threshold + np.log(spread) / 2) * 2 * spread) / TAU
    return sums


def clip(log_threshold: float, steps: int) -> float:
    """The largest residual of which `steps` in a row reach the threshold, and one less do not: no matter how heavy the
    tails are, so many steps must have been slow."""
    fewer = steps - 1
    spread = 1.0 + fewer * TAU**2
    return 0.99 * float(np.sqrt((log_threshold + np.log(spread) / 2) * 2 * spread) / (TAU * fewer))


def onset(residuals: Floats) -> int:
    """How many steps ago the rise of one item most likely began; 1: the newest step was the first."""
    starts = np.arange(1, len(residuals) + 1)
    return int(starts[np.argmax(_log_mixture(np.cumsum(residuals), starts))])


def _log_mixture(sums: Floats, steps: Ints) -> Floats:
    spread = 1.0 + steps * TAU**2
    mixture: Floats = np.fmax(sums, 0.0)
    mixture *= mixture
    mixture *= TAU**2 / (2 * spread)
    mixture -= np.log(spread) / 2
    return mixture


def recovery(state: Floats, residual: Floats, effect: Floats, share: Floats) -> Floats:
    """One step of the CUSUM that says "the effect is over": it falls by the log-likelihood ratio of effect to none.

    effect (in standard deviations, as residual) shows in this share of the steps; all are one for each item. Start at
    0, over at <= -RECOVERED.
    """
    size = np.clip(effect, 0.5, 4.0)
    bounded = np.clip(residual, 0.0, 2 * size)
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log1p(-share), np.log(share) + size * (bounded - size / 2))
    return np.minimum(0.0, state + ratio)


RECOVERED = 16.0
"""Log-likelihood ratio that an effect is over: as sure as the alarm of a small job, log(10^5 steps × 8 ranks × 13
signals)."""
FADING = 4.0
"""State of a recovery that has more than begun: a step without the effect, where that is large."""
