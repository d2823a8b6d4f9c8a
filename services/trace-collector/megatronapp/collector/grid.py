"""Steps put together into buckets, per rank: what a picture of many steps is drawn from. Pure.

Buckets are aligned: with `bucket_steps` steps each, a step lies in bucket step // bucket_steps, whatever was asked for.
So a viewer may ask for the newest buckets alone and put them behind those that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.v1 import trace_pb2

MAX_CELLS = 1 << 20
"""Of one answer: buckets × ranks."""

DEFAULT_BUCKETS = 4_096

COLUMNS = (
    "step",
    "rank",
    "start_ns",
    "clock_offset_ns",
    "duration_ns",
    "compute_ns",
    "wait_ns",
    "host_ns",
    "traced",
)
"""What is read of a table of steps."""

_SUMS = ("duration_ns", "compute_ns", "wait_ns", "host_ns")
_LATEST, _EARLIEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def choose_bucket(first: int, last: int, ranks: int, most: int) -> int:
    """The smallest power of two with which steps [first, last] fill at most `most` buckets (0: DEFAULT_BUCKETS) and
    MAX_CELLS cells.

    Raises DataError for more ranks than an answer has cells.
    """
    if ranks > MAX_CELLS:
        raise DataError(f"{ranks} ranks; ask for at most {MAX_CELLS}")
    most = min(most or DEFAULT_BUCKETS, MAX_CELLS // max(1, ranks))
    bucket = 1
    while last // bucket - first // bucket + 1 > most:
        bucket *= 2
    return bucket


@dataclass
class StepGrid:
    """Buckets of `bucket_steps` over steps [first, last], for `ranks` (ascending). Rows of others are passed over."""

    first: int
    last: int
    bucket_steps: int
    ranks: npt.NDArray[np.uint32]
    buckets: int = field(init=False)

    def __post_init__(self) -> None:
        self.first -= self.first % self.bucket_steps
        self.buckets = max(0, self.last - self.first) // self.bucket_steps + 1
        cells = self.buckets * len(self.ranks)
        self._count = np.zeros(cells, np.int64)
        self._sums = {name: np.zeros(cells, np.float64) for name in _SUMS}
        self._start = np.full(cells, _LATEST)
        self._shortest = np.full(cells, np.inf)
        self._longest = np.zeros(cells)
        self._most_compute = np.zeros(cells)
        self._bucket_start = np.full(self.buckets, _LATEST)
        self._bucket_end = np.full(self.buckets, _EARLIEST)
        self._traced = np.zeros(self.buckets, np.uint8)

    def fold(self, table: Any) -> None:
        """Take in rows of a table of steps (tables.step_table), in any order."""
        column = {name: table[name].to_numpy() for name in COLUMNS}
        step, rank = column["step"].astype(np.int64), column["rank"]
        row = np.searchsorted(self.ranks, rank)
        known = (
            self.ranks[np.minimum(row, len(self.ranks) - 1)] == rank if len(self.ranks) else np.zeros(len(rank), bool)
        )
        wanted = np.flatnonzero(known & (step >= self.first) & (step <= self.last))
        bucket = (step[wanted] - self.first) // self.bucket_steps
        cell = bucket * len(self.ranks) + row[wanted]
        start = (column["start_ns"] + column["clock_offset_ns"])[wanted]
        duration = column["duration_ns"][wanted]
        np.add.at(self._count, cell, 1)
        for name, total in self._sums.items():
            np.add.at(total, cell, column[name][wanted])
        np.minimum.at(self._start, cell, start)
        np.minimum.at(self._shortest, cell, duration)
        np.maximum.at(self._longest, cell, duration)
        np.maximum.at(self._most_compute, cell, column["compute_ns"][wanted])
        np.minimum.at(self._bucket_start, bucket, start)
        np.maximum.at(self._bucket_end, bucket, start + duration)
        np.maximum.at(self._traced, bucket, (column["traced"][wanted] != 0).astype(np.uint8))

    def response(self, oldest: int, newest: int) -> trace_pb2.ListStepGridResponse:
        """`oldest` and `newest` step that the attempt has."""
        reported = self._count > 0
        cells = np.repeat(self._bucket_start, len(self.ranks))
        filled = self._bucket_end > _EARLIEST
        mean = {name: _divided(total, self._count) for name, total in self._sums.items()}
        return trace_pb2.ListStepGridResponse(
            oldest_step=oldest,
            newest_step=newest,
            first_step=self.first,
            bucket_steps=self.bucket_steps,
            ranks=self.ranks.astype("<u4").tobytes(),
            start_ns=np.where(filled, self._bucket_start, 0).astype("<i8").tobytes(),
            end_ns=np.where(filled, self._bucket_end, 0).astype("<i8").tobytes(),
            traced=self._traced.tobytes(),
            offset_seconds=_seconds(np.where(reported, self._start - np.where(reported, cells, 0), 0), reported),
            duration_seconds=_seconds(mean["duration_ns"], reported),
            shortest_seconds=_seconds(self._shortest, reported),
            longest_seconds=_seconds(self._longest, reported),
            compute_seconds=_seconds(mean["compute_ns"], reported),
            most_compute_seconds=_seconds(self._most_compute, reported),
            wait_seconds=_seconds(mean["wait_ns"], reported),
            host_seconds=_seconds(mean["host_ns"], reported),
        )


def _divided(total: npt.NDArray[np.float64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return total / np.maximum(count, 1)


def _seconds(nanoseconds: npt.NDArray[Any], reported: npt.NDArray[np.bool_]) -> bytes:
    return np.where(reported, nanoseconds / 1e9, np.nan).astype("<f4").tobytes()
