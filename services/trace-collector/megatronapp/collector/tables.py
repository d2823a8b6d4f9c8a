"""Blocks → Arrow tables, column by column: steps, summaries and spans as they lie in the store.

Times are the rank's own; job time = start_ns + clock_offset_ns. Communicators and names are dictionaries of strings.
pyarrow is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.collector.blocks import SpanBlock, SummaryBlock
from megatronapp.collector.history import PROGRESS
from megatronapp.core.trace.columns import NONE, SPAN_DTYPES, SUMMARY_DTYPES, Column, joined, spread
from megatronapp.core.trace.span_names import STEP_COMPUTE, SpanName
from megatronapp.v1 import trace_pb2

SPAN_ROWS = 1 << 17
"""Rows of one table of spans: what is made, written and dropped while it is in the processor's cache."""

TEXTS = ("name", "communicator")
"""Columns that are dictionaries of strings."""

_WAIT_KINDS = (trace_pb2.SPAN_KIND_P2P, trace_pb2.SPAN_KIND_COLLECTIVE)
_ALWAYS = ("start_ns", "duration_ns", "kind", "stream")


def span_tables(blocks: Sequence[SpanBlock], rows: int = SPAN_ROWS) -> Iterator[Any]:
    """Tables of one schema with a row per span, each of about `rows` rows; a column that says "none everywhere" in all
    blocks is left out (`complete` puts it back)."""
    kept = [name for name in SPAN_DTYPES if name in _ALWAYS or any(b.columns.sent(name) is not None for b in blocks)]
    for part in _parts(blocks, rows):
        columns = _keys(part) | _text_columns(part)
        yield _table(columns | {name: _joined(part, name) for name in kept if name not in TEXTS})


def complete(table: Any) -> Any:
    """A table of spans with all its columns."""
    import pyarrow as pa

    for name, dtype in SPAN_DTYPES.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(np.full(len(table), NONE.get(name, 0), dtype)))
    return table


def summary_table(blocks: Sequence[SummaryBlock]) -> Any:
    """One row per (step, rank, operation, chunk, communicator, peer)."""
    columns = _keys(blocks) | _text_columns(blocks)
    return _table(columns | {name: _joined(blocks, name) for name in SUMMARY_DTYPES if name not in TEXTS})


def step_table(blocks: Sequence[SummaryBlock]) -> Any:
    """One row per (step, rank)."""
    columns: dict[str, Any] = _keys(blocks, rows=[1] * len(blocks))
    for name in ("start_ns", "duration_ns", "cpu_ns"):
        columns[name] = np.array([getattr(block.summary, name) for block in blocks], np.int64)
    columns |= _shares(blocks)
    columns["host_ns"] = np.maximum(0, columns["duration_ns"] - columns["compute_ns"] - columns["wait_ns"])
    columns["traced"] = np.array([block.summary.traced for block in blocks], np.uint8)
    columns["phases"] = np.array([sum(1 << phase for phase in set(b.summary.phases)) for b in blocks], np.uint32)
    columns["reported"] = np.array([_reported(block.summary.progress) for block in blocks], np.uint8)
    for name in PROGRESS:
        columns[name] = _progress(blocks, name)
    for name in ("peak_allocated_bytes", "reserved_bytes", "host_bytes"):
        columns[name] = np.array([getattr(block.summary.memory, name) for block in blocks], np.uint64)
    return _table(columns)


def _shares(blocks: Sequence[SummaryBlock]) -> dict[str, npt.NDArray[np.int64]]:
    """Of each rank's step, in ns: compute (forward, backward and optimizer, by CPU time on CPU ranks), wait (p2p and
    collectives), p2p alone, and the checkpoint and the evaluation before the step."""
    numbers: dict[str, int] = {name: number for number, name in enumerate(STEP_COMPUTE)}
    owner = np.repeat(np.arange(len(blocks)), [block.rows for block in blocks])
    on_cpu = np.array([block.on_cpu for block in blocks], bool)[owner]
    duration = _joined(blocks, "duration_sum_ns")
    measure = np.where(on_cpu, _joined(blocks, "cpu_sum_ns"), duration)
    name, kind = _named(blocks, numbers), _joined(blocks, "kind")

    def of(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return _summed(owner, duration, chosen, len(blocks))

    return {
        "compute_ns": _summed(owner, measure, name < len(STEP_COMPUTE), len(blocks)),
        "wait_ns": of(np.isin(kind, _WAIT_KINDS)),
        "p2p_ns": of(kind == trace_pb2.SPAN_KIND_P2P),
        "checkpoint_ns": of(name == numbers.get(SpanName.CHECKPOINT, -1)),
        "evaluation_ns": of(name == numbers.get(SpanName.EVALUATE, -1)),
    }


def _summed(
    owner: npt.NDArray[np.int64], values: Column, wanted: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.int64]:
    return np.bincount(owner[wanted], values[wanted], minlength=count).astype(np.int64)


def _parts(blocks: Sequence[SpanBlock], rows: int) -> Iterator[Sequence[SpanBlock]]:
    part: list[SpanBlock] = []
    size = 0
    for block in blocks:
        part.append(block)
        size += block.rows
        if size >= rows:
            yield part
            part, size = [], 0
    if part:
        yield part


def _joined(blocks: Sequence[SpanBlock] | Sequence[SummaryBlock], name: str) -> Column:
    """A column of all blocks."""
    return joined([block.columns for block in blocks], name)


def _keys(blocks: Sequence[SpanBlock] | Sequence[SummaryBlock], rows: Sequence[int] | None = None) -> dict[str, Any]:
    counts = [block.rows for block in blocks] if rows is None else rows
    return {
        "step": spread([block.step for block in blocks], counts, np.uint64),
        "rank": spread([block.rank for block in blocks], counts, np.uint32),
        "clock_offset_ns": spread([block.clock.offset_ns for block in blocks], counts, np.int64),
        "clock_error_ns": spread([block.clock.error_ns for block in blocks], counts, np.int64),
    }


def _text_columns(blocks: Sequence[SpanBlock] | Sequence[SummaryBlock]) -> dict[str, Any]:
    names: dict[str, int] = {}
    communicators: dict[str, int] = {"": 0}
    communicator = np.empty(sum(block.rows for block in blocks), np.int32)
    at = 0
    for block in blocks:
        communicator[at : at + block.rows] = _communicators(block, communicators)
        at += block.rows
    return {
        "name": _dictionary(_named(blocks, names), names or [""]),
        "communicator": _dictionary(communicator, communicators),
    }


def _named(blocks: Sequence[SpanBlock] | Sequence[SummaryBlock], numbers: dict[str, int]) -> npt.NDArray[np.int32]:
    """Numbers of all rows' names; `numbers` learns those that it does not know."""
    lookups: dict[tuple[str, ...], npt.NDArray[np.int32]] = {}
    named = np.empty(sum(block.rows for block in blocks), np.int32)
    at = 0
    for block in blocks:
        table = block.names
        if table not in lookups:
            lookups[table] = np.array([numbers.setdefault(n, len(numbers)) for n in table] or [0], np.int32)
        sent = block.columns.sent("name")
        named[at : at + block.rows] = lookups[table][0] if sent is None else lookups[table].take(sent)
        at += block.rows
    return named


def _communicators(block: SpanBlock | SummaryBlock, known: dict[str, int]) -> npt.NDArray[np.int32] | int:
    column = block.columns.sent("communicator")
    if column is None:
        return 0
    highest = int(column.max())
    if highest > 65_536:
        used, inverse = np.unique(column, return_inverse=True)
        named = [known.setdefault(block.communicators.get(int(i), ""), len(known)) for i in used]
        return np.asarray(np.array(named, np.int32)[inverse], np.int32)
    lookup = np.zeros(highest + 1, np.int32)
    for index, text in block.communicators.items():
        if index <= highest:
            lookup[index] = known.setdefault(text, len(known))
    return lookup.take(column)


def _dictionary(indices: npt.NDArray[np.int32], values: Iterable[str]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(list(values), pa.string()))


def _reported(progress: trace_pb2.Progress) -> int:
    """Bits by the order of PROGRESS: what the rank has told, be it a number or not."""
    return sum(1 << bit for bit, name in enumerate(PROGRESS) if progress.HasField(name))


def _progress(blocks: Sequence[SummaryBlock], name: str) -> npt.NDArray[np.float64]:
    """nan where the rank does not know the value."""
    values = [
        getattr(block.summary.progress, name) if block.summary.progress.HasField(name) else np.nan for block in blocks
    ]
    return np.array(values, np.float64)


def _table(columns: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    table = pa.table(dict(columns))
    # Nothing is ever absent, which spares the files a level of definitions.
    return table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))
