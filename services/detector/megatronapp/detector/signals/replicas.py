"""What a replica's stages have in common: its microbatches. Only the stages that read the data, the first and the last,
tell how much work these are; it is the same on all others, whose ranks would seem to waver otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.matrix import Compute
from megatronapp.detector.steps import Floats, Ints, RankTable


def with_work_of_replicas(compute: Compute, ranks: RankTable) -> Compute:
    """The same, with the tokens and squared lengths of a pass where its rank does not tell them and others of its
    replica do. Passes that waited for their host are left out of a rank's counts, and it is not known which
    microbatches these were: a rank that has any neither gives nor is given."""
    whole = (compute.count > 0) & (compute.count == compute.passes)
    given, lacking = whole & (compute.tokens > 0), whole & (compute.tokens == 0)
    if not given.any() or not lacking.any():
        return compute
    replica = _replicas(ranks)
    tokens, squares = (
        np.where(lacking, compute.count * _of_a_pass(what, compute.count, given, replica)[replica, None], what)
        for what in (compute.tokens, compute.length_squares)
    )
    return replace(compute, tokens=tokens, length_squares=squares)


def _replicas(ranks: RankTable) -> Ints:
    """Of each rank the number of those that are given the same microbatches."""
    context = ranks.context - ranks.context.min()
    _, number = np.unique(ranks.data * (context.max() + 1) + context, return_inverse=True)
    return number.astype(np.int64)


def _of_a_pass(what: Floats, count: Floats, given: npt.NDArray[np.bool_], replica: Ints) -> Floats:
    """(replicas,): mean over the passes that tell it, 0 where none does."""
    size = int(replica.max()) + 1
    total = np.bincount(replica, np.where(given, what, 0.0).sum(axis=1), size)
    passes = np.bincount(replica, np.where(given, count, 0.0).sum(axis=1), size)
    mean: Floats = total / np.maximum(passes, 1.0)
    return mean
