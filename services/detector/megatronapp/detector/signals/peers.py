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
    n, _ = values.shape
    reference = np.where(usable[:, None] & np.isfinite(values), values, np.nan)
    order = np.argsort(reference, axis=0, kind="stable")
    ordered = np.concatenate([np.take_along_axis(reference, order, axis=0), np.full((1, values.shape[1]), np.nan)])
    counted = np.isfinite(reference)
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.arange(n)[:, None], axis=0)
    position = np.where(counted, position, n)
    others = counted.sum(axis=0) - counted
    low, high = (np.maximum(others - 1, 0) // 2), others // 2

    def without_own(index: Ints) -> Floats:
        taken: Floats = np.take_along_axis(ordered, np.minimum(index + (index >= position), n), axis=0)
        return taken

    return np.where(others > 0, (without_own(low) + without_own(high)) / 2, np.nan)


def beside_stage_peers(values: Floats, stage: Ints, usable: npt.NDArray[np.bool_]) -> Floats:
    """median_of_others within each pipeline stage; values is (ranks × keys)."""
    reference = np.full_like(values, np.nan)
    for s in np.unique(stage):
        members = stage == s
        reference[members] = median_of_others(values[members], usable[members])
    return reference
