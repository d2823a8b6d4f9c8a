"""The least and the greatest value of columns, in each of several messages: they tell whether the columns are
plausible, and how narrow they can go on the wire, without another look at each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Extent(NamedTuple):
    """Of a column: the least and the greatest value in each of several messages, 0 in those without rows."""

    low: Ints
    high: Ints


def extents_of(columns: Mapping[str, npt.NDArray[np.integer[Any]]], bounds: Ints) -> dict[str, Extent]:
    """Of message i are rows bounds[i] to bounds[i + 1]. What is above int64 shows as negative."""
    # One table, since a call per column costs more than the work in it.
    low, high = least_and_greatest(np.array(list(columns.values()), np.int64), bounds)
    return {name: Extent(*each) for name, *each in zip(columns, low, high, strict=True)}


def least_and_greatest(table: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """Of a table of (columns, rows): two of (columns, messages), as in Extent."""
    filled = np.flatnonzero(np.diff(bounds))
    low, high = np.zeros((2, len(table), len(bounds) - 1), np.int64)
    if len(filled):
        low[:, filled] = np.minimum.reduceat(table, bounds[filled], axis=1)
        high[:, filled] = np.maximum.reduceat(table, bounds[filled], axis=1)
    return low, high
