"""From a rank's records to whole steps: the rows of a step, its end, and nothing that was overwritten in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.trace import limits
from megatronapp.core.trace.message_id import MAX_PACKED
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.segment import Record

Ints = npt.NDArray[np.int64]

MAX_ROWS = 1 << 18
"""Of a step. A large model traced in full has some ten thousand."""
MAX_DEEP = 256
"""Blocking spans around a span."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of one step, in the order in which they ended; int64 arrays of one entry per span, times in ns.

    `columns` holds those of layout.COLUMNS: `first` is the number of spans that had ended when this one began (so rows
    first..own-1 lie inside it), `blocked` the number of blocking spans around it.
    """

    columns: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.columns["name"])

    @property
    def start(self) -> Ints:
        return self.columns["issue"]

    @property
    def duration(self) -> Ints:
        return self.columns["end"] - self.columns["issue"]

    @property
    def exposed(self) -> Ints:
        """What it took of the thread's or stream's time: of an asynchronous operation only the waiting."""
        return self.columns["end"] - self.columns["begin"]

    @property
    def cpu(self) -> Ints:
        """CPU time of the training thread during `exposed`; 0 for spans of a GPU stream."""
        return self.columns["cpu"]

    @property
    def enqueue(self) -> Ints:
        """Host time at the enqueue of a GPU stream's span; 0 for others."""
        return self.columns["enqueue"]

    @property
    def behind(self) -> Ints:
        """How far the device was behind its host at the end of a GPU stream's span; 0 for others."""
        return self.columns["behind"]


@dataclass(frozen=True, slots=True)
class Step:
    end: StepEnd
    spans: Spans


class Steps:
    """Puts records together. `lost` counts spans whose step is not whole, and records that were overwritten."""

    def __init__(self, names: int) -> None:
        """`names`: how many the rank's table has."""
        self._low, self._high = _bounds(names)
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

    def _end(self, content: bytes) -> Step | None:
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
        table = np.concatenate(parts, axis=1) if parts else np.zeros((len(layout.COLUMNS), 0), np.int64)
        self._check(table)
        return Step(end, Spans(dict(zip(layout.COLUMNS, table, strict=True))))

    def _forget(self) -> None:
        self.lost += self._rows
        self._parts, self._rows = [], 0

    def _check(self, table: Ints) -> None:
        """Every value within its column's bounds; `first` points back."""
        if not table.shape[1]:
            return
        low, high = table.min(axis=1), table.max(axis=1)
        wrong = (low < self._low) | (high > self._high)
        if wrong.any():
            column = int(wrong.argmax())
            raise DataError(f"{low[column]} to {high[column]} in column {layout.COLUMNS[column]}")
        if (table[1] > np.arange(table.shape[1])).any():
            raise DataError("a span that begins after its end")


def _rows(content: bytes) -> tuple[int, Ints]:
    if len(content) < layout.ROWS_HEAD.size:
        raise DataError(f"rows in {len(content)} bytes")
    step, rows, columns = layout.ROWS_HEAD.unpack_from(content)
    if columns != len(layout.COLUMNS) or len(content) != layout.ROWS_HEAD.size + 8 * rows * columns:
        raise DataError(f"{rows} rows of {columns} columns in {len(content)} bytes")
    return step, np.frombuffer(content, np.int64, rows * columns, layout.ROWS_HEAD.size).reshape(columns, rows)


def _bounds(names: int) -> tuple[Ints, Ints]:
    time, duration = limits.MAX_TIME_NS, limits.MAX_DURATION_NS
    ranges = {
        "name": (0, names - 1),
        "first": (0, MAX_ROWS),
        "blocked": (0, MAX_DEEP),
        "microbatch": (-1, limits.MAX_MICROBATCHES),
        "chunk": (-1, limits.MAX_VIRTUAL_PIPELINE),
        "layer": (-1, (1 << 15) - 1),
        "communicator": (0, limits.MAX_COMMUNICATORS),
        "peer": (-1, limits.MAX_WORLD - 1),
        "stream": (0, 255),
        "message": (0, MAX_PACKED),
        **dict.fromkeys(("issue", "begin", "end", "enqueue"), (-time, time)),
        **dict.fromkeys(("cpu", "behind"), (-duration, duration)),
    }
    low, high = zip(*(ranges.get(name, (0, limits.MAX_COUNT)) for name in layout.COLUMNS), strict=True)
    return np.array(low, np.int64), np.array(high, np.int64)
