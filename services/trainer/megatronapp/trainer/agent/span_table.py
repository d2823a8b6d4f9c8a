"""The spans of several steps as one table: what a node's ranks have ended in a tick is checked, summed up and encoded
at once, since a call of numpy's costs more than a step of a few dozen spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace import limits
from megatronapp.core.trace.extents import Extent, least_and_greatest
from megatronapp.core.trace.message_id import MAX_PACKED
from megatronapp.trainer.agent import layout

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_ROWS = 1 << 18
"""Of a step. A large model traced in full has some ten thousand."""
MAX_DEEP = 256
"""Blocking spans around a span."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of steps, one step behind the other and each in the order in which its spans ended; int64 arrays of one
    entry per span, times in ns.

    `columns` holds those of layout.COLUMNS: `first` is where in the table the spans begin that had not ended when this
    one began (so rows first..own-1 lie inside it), `blocked` the number of blocking spans around it. Of step i are rows
    bounds[i] to bounds[i + 1].
    """

    columns: Mapping[str, Ints]
    bounds: Ints
    extents: Mapping[str, Extent] = field(default_factory=dict)
    """Of the columns, but for `first`, in each step; where they are known."""

    def __len__(self) -> int:
        return len(self.columns["name"])

    @property
    def step(self) -> Ints:
        """Which of the steps each span is of."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

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

    def of(self, steps: Sequence[int]) -> Spans:
        """The spans of some of the steps, which are ascending. Their `first` is that of the whole table."""
        bounds = np.concatenate(([0], np.cumsum(np.diff(self.bounds)[steps])))
        rows = np.isin(self.step, steps)
        extents = {name: Extent(low[steps], high[steps]) for name, (low, high) in self.extents.items()}
        return Spans({name: column[rows] for name, column in self.columns.items()}, bounds, extents)

    def only(self, rows: Ints) -> Spans:
        """Some of the spans, which are ascending, as if there had been no others."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        columns["first"] = np.searchsorted(rows, columns["first"])
        return Spans(columns, np.searchsorted(rows, self.bounds))


def joined(tables: Sequence[Ints], names: int) -> tuple[Spans, list[str]]:
    """The rows of steps as one table, and of each step why it can't be true: empty when it can. A step that can't has
    no rows in it.

    `tables`: of each step, in the order of layout.COLUMNS, (columns, rows), whose `first` counts from the step's begin;
    `names`: how many names the ranks have.
    """
    whole = np.concatenate(tables, axis=1)
    bounds = np.concatenate(([0], np.cumsum([table.shape[1] for table in tables], dtype=np.int64)))
    low, high = least_and_greatest(whole, bounds)
    begins = np.repeat(bounds[:-1], np.diff(bounds))
    whole[_FIRST] += begins
    reasons = _implausible(whole[_FIRST], bounds, low, high, names)
    if any(reasons):
        kept = [table[:, :0] if reason else table for table, reason in zip(tables, reasons, strict=True)]
        return joined(kept, names)[0], reasons
    extents = {name: Extent(*each) for name, *each in zip(layout.COLUMNS, low, high, strict=True) if name != "first"}
    return Spans(dict(zip(layout.COLUMNS, whole, strict=True)), bounds, extents), reasons


def _implausible(first: Ints, bounds: Ints, low: Ints, high: Ints, names: int) -> list[str]:
    """Every value must be within its column's bounds, and `first` point back."""
    least, most = _bounds(names)
    outside = ((low < least[:, None]) | (high > most[:, None])) & (np.diff(bounds) > 0)
    late = np.zeros(len(bounds) - 1, np.bool_)
    late[np.searchsorted(bounds, np.flatnonzero(first > np.arange(len(first))), side="right") - 1] = True
    reasons = [""] * len(late)
    for at in np.flatnonzero(outside.any(axis=0) | late).tolist():
        column = int(outside[:, at].argmax())
        reasons[at] = (
            f"{low[column, at]} to {high[column, at]} in column {layout.COLUMNS[column]}"
            if outside[column, at]
            else "a span that begins after its end"
        )
    return reasons


_FIRST = layout.COLUMNS.index("first")


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
