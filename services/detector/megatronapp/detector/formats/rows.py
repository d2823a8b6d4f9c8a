"""Rows of a StepTable from the columns that a format knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import Rows

_NONE = {"chunk": 0, "communicator": -1, "peer": -1}
_INTEGERS = {"rank", "operation", "chunk", "communicator", "peer", "count", "starved_count"}


def make_rows(columns: Mapping[str, npt.ArrayLike]) -> Rows:
    """Columns that are not given say "none" in every row."""
    length = len(np.asarray(columns["rank"]))
    arrays: dict[str, Any] = {
        field.name: np.asarray(
            columns.get(field.name, np.full(length, _NONE.get(field.name, 0))),
            dtype=np.int64 if field.name in _INTEGERS else np.float64,
        )
        for field in dataclasses.fields(Rows)
    }
    return Rows(**arrays)
