"""Tails: by how much sums over steps exceed what normal noise makes of them, where a few steps are far off.

The test (sequential.py) takes residuals as normal. Where their tails are heavy, as where the data makes a step's work
twice as much now and then, two such steps and some that are a little slow reach its threshold far more often than is
promised. How often follows from the residuals that the job shows, winsorised as they are tested, by the bound of Cramér
and Chernoff: a sum over w independent ones reaches x with a probability of at most

    exp(w K(θ) - θ x) for any θ > 0, where K(θ) = log mean exp(θ residual).
"""

from __future__ import annotations

import numpy as np

from megatronapp.detector.statistics import sequential
from megatronapp.detector.steps import Floats

SLOPES = np.geomspace(0.05, 8.0, 40)
"""Values of θ that are tried: each of them gives a bound, the least of these is taken. For normal residuals the best
one is sqrt(2 log_threshold / w): 0.5 to 6 for all of sequential.WINDOWS."""
BINS = 256
"""Residuals are counted in so many; each counts as the upper end of its bin."""
SAMPLES = 65_536
"""That are looked at: what one of a thousand shows, which is what three steps in a row rest on, is then known to an
eighth."""
MOST_STEPS = 16
"""Heavier tails than make so many steps in a row necessary are not looked for: so many are expected of any effect."""


def factors(residuals: Floats, clip: float, log_threshold: float) -> Floats:
    """By how much sums over each of sequential.WINDOWS must be larger than those of normal noise to be as rare as one
    in exp(log_threshold); at least 1.

    residuals (items × samples): in standard deviations, nan: not measured; `clip` is the largest that counts.
    """
    few = residuals[:: max(1, residuals.size // SAMPLES)]
    known = few[np.isfinite(few)]
    if not len(known):
        return np.ones(len(sequential.WINDOWS))
    values = np.linspace(-clip, clip, BINS + 1)
    bins = np.ceil((np.clip(known, -clip, clip) / clip + 1) * (BINS / 2)).astype(np.int64)
    shares = np.bincount(bins, minlength=BINS + 1) / len(known)
    cumulants = np.log(np.exp(SLOPES[:, None] * values) @ shares)
    reached = ((sequential.WINDOWS[:, None] * cumulants + log_threshold) / SLOPES).min(axis=1)
    larger: Floats = np.maximum(1.0, reached / sequential.needed(log_threshold))
    return larger


def clip(residuals: Floats, log_threshold: float) -> float:
    """Of the tails that the job shows: a residual that a share q of all reach counts for no more than that
    log_threshold / log(1 / q) of them in a row make an alarm, by chance as rarely as it is promised."""
    samples = max(1, int(np.count_nonzero(np.isfinite(residuals))))
    for steps in range(2, MOST_STEPS):
        largest = sequential.clip(log_threshold, steps)
        share = np.count_nonzero(residuals >= largest) / samples
        if share == 0.0 or steps * np.log(1 / share) >= log_threshold:
            return largest
    return sequential.clip(log_threshold, MOST_STEPS)
