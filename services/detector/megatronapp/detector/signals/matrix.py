"""Rows of a step as a matrix: ranks × (operation, chunk)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.trace.span_names import PASSES, SpanName
from megatronapp.detector.signals.beside import own_passes
from megatronapp.detector.steps import Floats, Ints, Rows, StepTable


@dataclass(frozen=True, slots=True)
class Compute:
    """Work of each rank and key: all arrays (ranks × keys), nan or 0 where the rank has no such row."""

    operations: tuple[str, ...]
    """Of each key."""
    chunks: tuple[int, ...]
    seconds: Floats
    """The device's own: thread CPU time on CPU ranks, device time of the spans that were not starved on GPU ranks."""
    count: Floats
    """Spans that are in `seconds`; so tokens and length_squares."""
    tokens: Floats
    length_squares: Floats
    elapsed: Floats
    """Self time of all spans, starved ones too."""
    passes: Floats
    """How many those are."""
    fastest: Floats
    """Self time by the clock of the shortest of them."""


def measured(table: StepTable, rows: Rows) -> Floats:
    """Seconds of each row in the measure of compute that its rank has."""
    return np.where(table.ranks.on_cpu[rows.rank], rows.cpu, rows.duration)


def compute(table: StepTable, operations: tuple[str, ...] = PASSES, *, clock: bool = False) -> Compute:
    """The step's compute, key by key: what every rank of a stage does alike, without the optimizer. `clock`: by the
    clock, also where it is measured in CPU time."""
    rows = own_passes(table) if SpanName.BACKWARD in operations else table.rows
    numbers = [table.operations.index(name) for name in operations if name in table.operations]
    mine = np.isin(rows.operation, numbers) & (rows.count > 0)
    code = rows.operation[mine] * 4096 + np.maximum(rows.chunk[mine], 0)
    keys, key = np.unique(code, return_inverse=True)
    cells, shape = rows.rank[mine] * len(keys) + key, (len(table.ranks), len(keys))

    def total(column: Floats | Ints) -> Floats:
        summed = np.bincount(cells, column[mine].astype(np.float64), shape[0] * shape[1])
        return summed.astype(np.float64).reshape(shape)

    elapsed = total(rows.duration if clock else measured(table, rows))
    seconds = elapsed - total(rows.starved)
    passes = total(rows.count)
    count = passes - total(rows.starved_count)
    return Compute(
        operations=tuple(table.operations[k // 4096] for k in keys),
        chunks=tuple(int(k % 4096) for k in keys),
        seconds=np.where((count > 0) & (seconds > 0), seconds, np.nan),
        count=count,
        tokens=total(rows.tokens) - total(rows.starved_tokens),
        length_squares=total(rows.length_squares) - total(rows.starved_length_squares),
        elapsed=np.where(elapsed > 0, elapsed, np.nan),
        passes=passes,
        fastest=_least(rows.duration_min[mine], cells, shape),
    )


def _least(values: Floats, cells: Ints, shape: tuple[int, int]) -> Floats:
    least = np.full(shape[0] * shape[1], np.inf)
    np.minimum.at(least, cells, values)
    return np.where(np.isfinite(least), least, np.nan).reshape(shape)
