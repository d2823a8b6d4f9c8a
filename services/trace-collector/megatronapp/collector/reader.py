"""Reading back what has been taken in, wherever it lies: in the store, on its way there, or in memory.

A `Snapshot` is taken in the event loop, where memory and the store's list of files agree; its rows are read in threads,
by steps that there are, whatever range was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatronapp.collector import tables
from megatronapp.collector.blocks import SpanBlock, SummaryBlock
from megatronapp.collector.jobs import Attempt
from megatronapp.collector.parts import Part
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.collector.store import Store
from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import SPAN_DTYPES, Column
from megatronapp.core.trace.limits import MAX_WORLD
from megatronapp.v1 import trace_pb2

WINDOW_STEPS = 16
WINDOW_ROWS = 1 << 20
"""Spans are read so many steps at a time, or fewer when they have more rows; a step is read whole."""

Stopped = Callable[[], bool]
"""Whether nobody waits for the answer any more."""


@dataclass(frozen=True)
class Snapshot:
    """The rows of steps [from_step, to_step] of one attempt, and of `ranks` when any are named."""

    store: Store
    from_step: int
    to_step: int
    ranks: frozenset[int]
    parts: Sequence[Part]
    summaries: Sequence[SummaryBlock]
    span_blocks: Sequence[SpanBlock]
    communicators: Mapping[int, Sequence[trace_pb2.Communicator]]

    def steps(self) -> Any:
        """The step table (tables.step_table), ordered by step and rank; None when it is empty."""
        found = list(self.store.read(self.parts, self.from_step, self.to_step, tuple(self.ranks)))
        if self.summaries:
            found.append(tables.step_table(self.summaries))
        return _sorted(found, ["step", "rank"])

    def step_tables(self, columns: Sequence[str], stopped: Stopped = lambda: False) -> Iterator[Any]:
        """The rows of `steps`, a file after the other and in no order, with these columns."""
        for part in self.parts:
            if stopped():
                return
            yield from self.store.read([part], self.from_step, self.to_step, tuple(self.ranks), columns)
        if self.summaries:
            yield tables.step_table(self.summaries)

    def spans(self, stopped: Stopped = lambda: False) -> Iterator[RankSpans]:
        """By step, then rank; within a rank by start. Ends early when `stopped` says so."""
        for low, high in self._windows(stopped):
            if stopped():
                return
            found = list(self.store.read(self.parts, low, high, tuple(self.ranks)))
            found += tables.span_tables([block for block in self.span_blocks if low <= block.step <= high])
            table = _sorted([tables.complete(each) for each in found], ["step", "rank", "start_ns"])
            if table is not None:
                yield from self._cut(table)

    def _windows(self, stopped: Stopped) -> Iterator[tuple[int, int]]:
        """First and last steps of what is read at once."""
        rows = Counter[int]()
        for block in self.span_blocks:
            rows[block.step] += block.rows
        for of_file in self.store.step_rows(self.parts, self.from_step, self.to_step):
            if stopped():
                return
            rows.update(of_file)
        window: list[int] = []
        for step in sorted(rows):
            if window and (len(window) == WINDOW_STEPS or sum(rows[s] for s in window) + rows[step] > WINDOW_ROWS):
                yield window[0], window[-1]
                window = []
            window.append(step)
        if window:
            yield window[0], window[-1]

    def _cut(self, table: Any) -> Iterator[RankSpans]:
        columns = _in_job_time(table)
        names = table["name"].combine_chunks().dictionary.to_pylist()
        ids = table["communicator"].combine_chunks().dictionary.to_pylist()
        step, rank = table["step"].to_numpy(), table["rank"].to_numpy()
        borders = np.flatnonzero((np.diff(step) != 0) | (np.diff(rank) != 0)) + 1
        for begin, end in zip([0, *borders], [*borders, len(step)], strict=True):
            number = int(rank[begin])
            known = self.communicators.get(number, ())
            index_of = {communicator.id: communicator.index for communicator in known}
            own = {name: column[begin:end] for name, column in columns.items()}
            own["communicator"] = np.array([index_of.get(text, 0) for text in ids], np.uint32)[own["communicator"]]
            yield RankSpans(number, int(step[begin]), names, known, own)


def take(
    store: Store, attempt: Attempt, table: str, from_step: int, to_step: int, ranks: Sequence[int] = ()
) -> Snapshot:
    """`table` is steps or spans; to_step 0 means to the newest. Call it in the event loop.

    Raises DataError for more ranks than a job can have.
    """
    if len(ranks) > MAX_WORLD:
        raise DataError(f"{len(ranks)} ranks; name at most {MAX_WORLD}, or none for all")
    parts = store.parts(attempt.key, table)
    last = to_step or max([attempt.last_step, *(part.last for part in parts)])
    chosen = frozenset(ranks)

    def wanted(block: SpanBlock | SummaryBlock) -> bool:
        return from_step <= block.step <= last and (not chosen or block.rank in chosen)

    buffers = (attempt.writing, attempt.buffer)
    return Snapshot(
        store,
        from_step,
        last,
        chosen,
        parts,
        [block for buffer in buffers for block in buffer.summaries if wanted(block)],
        [block for buffer in buffers for block in buffer.spans if wanted(block)],
        {number: list(rank.communicators.values()) for number, rank in attempt.ranks.items()},
    )


def _sorted(found: Sequence[Any], keys: Sequence[str]) -> Any:
    import pyarrow as pa

    if not found:
        return None
    table = pa.concat_tables(found, promote_options="default").unify_dictionaries()
    return table.sort_by([(key, "ascending") for key in keys]) if len(table) else None


def _in_job_time(table: Any) -> dict[str, Column]:
    """The columns of a table of spans; name and communicator as numbers of the table's texts."""
    columns: dict[str, Column] = {
        name: table[name].combine_chunks().indices.to_numpy() if name in tables.TEXTS else table[name].to_numpy()
        for name in SPAN_DTYPES
    }
    offset, enqueue = table["clock_offset_ns"].to_numpy(), columns["enqueue_ns"]
    columns["start_ns"] = columns["start_ns"] + offset
    columns["enqueue_ns"] = np.where(enqueue != 0, enqueue + offset, 0)
    return columns
