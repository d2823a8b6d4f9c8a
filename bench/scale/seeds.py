"""Seeds: those to look at while a rule is worked on, and those that a result is told from, are never the same.

A rule that was tuned on the jobs it is judged by proves nothing. Where a result led to a change of a rule, its seeds
are used up: RESULT gets a new range.
"""

from __future__ import annotations

import zlib

import numpy as np

TUNING = range(0, 10**6)
RESULT = range(2 * 10**9, 2 * 10**9 + 10**6)


def seeds(count: int, *, result: bool) -> range:
    """The first so many of one of the two ranges."""
    chosen = RESULT if result else TUNING
    if not 0 <= count <= len(chosen):
        raise ValueError(f"{count} seeds were asked for; there are {len(chosen)}")
    return chosen[:count]


def generator(seed: int, *names: object) -> np.random.Generator:
    """Randomness of one purpose: other purposes of the same seed draw independently of it."""
    return np.random.default_rng((seed, *(zlib.crc32(str(name).encode()) for name in names)))
