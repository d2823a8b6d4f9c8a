"""Seeds: those to look at while a rule is worked on, and those that a result is told from, are never the same.

A rule that was tuned on the jobs it is judged by proves nothing. Seeds come in rounds: round 0 is for tuning, all
others for results. Where a result led to a change of a rule its round is used up, and RESULT_ROUND is raised.
"""

from __future__ import annotations

import zlib

import numpy as np

TUNING = 0
RESULT_ROUND = 11
"""Of results that are made now. Used up: 1 to 10."""
ROUNDS = range(20)
SEEDS_OF_ROUND = 10**6


def seeds(count: int, of_round: int = TUNING, first: int = 0) -> range:
    """So many of a round, from its `first` on: processes that share a run's jobs each begin elsewhere."""
    if of_round not in ROUNDS:
        raise ValueError(f"there is no round {of_round} of seeds; there are {ROUNDS.start} to {ROUNDS.stop - 1}")
    if not (count >= 0 and first >= 0 and first + count <= SEEDS_OF_ROUND):
        raise ValueError(f"{count} seeds from {first} on were asked for; a round has {SEEDS_OF_ROUND}")
    begin = of_round * 10**9 + first
    return range(begin, begin + count)


def generator(seed: int, *names: object) -> np.random.Generator:
    """Randomness of one purpose: other purposes of the same seed draw independently of it."""
    return np.random.default_rng((seed, *(zlib.crc32(str(name).encode()) for name in names)))
