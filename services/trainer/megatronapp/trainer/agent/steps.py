"""From a rank's records to whole steps: the rows of a step, its end, and nothing that was overwritten in part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.ring import Record
from megatronapp.trainer.agent.span_table import MAX_ROWS, Ints

_NO_ROWS = np.zeros((len(layout.COLUMNS), 0), np.int64)


@dataclass(frozen=True, slots=True)
class Step:
    end: StepEnd
    table: Ints
    """Its rows in the order of layout.COLUMNS, (columns, rows). Their values were not checked."""
    detail: Ints | None = None
    """The same with NCCL's own times, for the timeline; None: there are none."""


class Steps:
    """Puts records together. `lost` counts spans whose step is not whole, and records that were overwritten."""

    def __init__(self) -> None:
        self._step = 0
        self._parts: list[Ints] = []
        self._rows = 0
        self.lost = 0

    def feed(self, record: Record) -> Step | None:
        """The step that ends in this record. Raises DataError for a record that can't be true."""
        if record.kind == layout.ROWS:
            self._add(*_rows(record.content))
        elif record.kind == layout.STEP_END:
            return self._end(record.content)
        return None

    def _add(self, step: int, table: Ints) -> None:
        if step != self._step:
            self._forget()  # its end was overwritten
            self._step = step
        if self._rows + table.shape[1] > MAX_ROWS:
            self._forget()
            raise DataError(f"a step of more than {MAX_ROWS} spans")
        self._parts.append(table)
        self._rows += table.shape[1]

    def _end(self, content: memoryview) -> Step | None:
        if len(content) < layout.END.size:
            raise DataError(f"a step's end of {len(content)} bytes; it has {layout.END.size}")
        end = StepEnd._make(layout.END.unpack_from(content))
        if end.rows > MAX_ROWS:
            raise DataError(f"a step of {end.rows} spans; at most {MAX_ROWS} are accepted")
        if self._rows and self._step != end.step:
            self._forget()
        if self._rows != end.rows:
            self._parts, self._rows = [], 0
            self.lost += max(end.rows, 1)
            return None
        parts, self._parts, self._rows = self._parts, [], 0
        table = parts[0] if len(parts) == 1 else np.concatenate([_NO_ROWS, *parts], axis=1)
        return Step(end, table)

    def _forget(self) -> None:
        self.lost += self._rows
        self._parts, self._rows = [], 0


def _rows(content: memoryview) -> tuple[int, Ints]:
    if len(content) < layout.ROWS_HEAD.size:
        raise DataError(f"rows in {len(content)} bytes")
    step, rows, columns = layout.ROWS_HEAD.unpack_from(content)
    if columns != len(layout.COLUMNS) or len(content) != layout.ROWS_HEAD.size + 8 * rows * columns:
        raise DataError(f"{rows} rows of {columns} columns in {len(content)} bytes")
    return step, np.frombuffer(content, np.int64, rows * columns, layout.ROWS_HEAD.size).reshape(columns, rows)
