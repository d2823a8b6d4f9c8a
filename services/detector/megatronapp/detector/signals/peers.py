"""Comparison with the median of the others that do the same work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import Floats, Ints


def median_of_others(values: Floats, usable: npt.NDArray[np.bool_]) -> Floats:
    """For each row of values (members × keys) the median, key by key, of the other rows that are usable.

    A row that is not usable is compared all the same, but nobody is compared with it. nan where no other row has a
    number. Leaving the row itself out keeps the full effect when there are only two.
    """
    keys = np.arange(values.shape[1])
    counted = usable[:, None] & np.isfinite(values)
    reference = np.where(counted, values, np.nan)
    ordered = np.concatenate([np.sort(reference, axis=0), np.full((2, len(keys)), np.nan)])
    number = counted.sum(axis=0)

    def at(index: Ints) -> Floats:
        """Of the others of a row that is counted: what is not above that place moves one place down without it."""
        here: Floats = ordered[index, keys]
        return np.where(reference <= here, ordered[index + 1, keys], here)

    with_all = (ordered[np.maximum(number - 1, 0) // 2, keys] + ordered[number // 2, keys]) / 2
    without_own = (at(np.maximum(number - 2, 0) // 2) + at(np.maximum(number - 1, 0) // 2)) / 2
    return np.where(counted, np.where(number > 1, without_own, np.nan), with_all)


def beside_stage_peers(values: Floats, stage: Ints, usable: npt.NDArray[np.bool_]) -> Floats:
    """median_of_others within each pipeline stage; values is (ranks × keys)."""
    order = np.argsort(stage, kind="stable")
    ends = np.flatnonzero(np.diff(stage[order])) + 1
    stages = zip(np.split(values[order], ends), np.split(usable[order], ends), strict=True)
    reference = np.full_like(values, np.nan)
    reference[order] = np.concatenate([median_of_others(*members) for members in stages])
    return reference
