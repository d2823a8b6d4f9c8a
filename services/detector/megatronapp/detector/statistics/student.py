"""Student's t: what is extraordinary where the standard deviation is itself known from few samples."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from megatronapp.detector.steps import Floats

LEAST_FREEDOM = 2.0
"""Of fewer degrees of freedom nothing is said."""


def quantile(normal: float, freedom: Floats | float) -> Floats:
    """From the normal one (Gaver & Kafadar, 1984: within 2 % from 3 degrees of freedom on); inf where too few."""
    known = np.maximum(freedom, LEAST_FREEDOM)
    with np.errstate(over="ignore"):
        value: Floats = np.sqrt(known * np.expm1(normal**2 * (known - 1.5) / (known - 1) ** 2))
    return np.where(np.asarray(freedom) > LEAST_FREEDOM, value, np.inf)


def sigmas(log_rarity: float) -> float:
    """How many standard deviations a normal variable exceeds in one of exp(log_rarity) cases."""
    return -NormalDist().inv_cdf(math.exp(-log_rarity))
