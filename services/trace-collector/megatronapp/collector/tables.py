"""Blocks → Arrow tables, column by column: steps, summaries and spans as they lie in the store.

Times are the rank's own; job time = start_ns + clock_offset_ns. Communicators and names are dictionaries of strings.
pyarrow is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.collector.blocks import SpanBlock, SummaryBlock
from megatronapp.core.trace.columns import SPAN_DTYPES, SUMMARY_DTYPES, Column
from megatronapp.v1 import trace_pb2

COMPUTE_NAMES = ("forward", "backward", "optimizer")
_WAIT_KINDS = (trace_pb2.SPAN_KIND_P2P, trace_pb2.SPAN_KIND_COLLECTIVE)


def span_table(blocks: Sequence[SpanBlock]) -> Any:
    """One row per span."""
    counts = [block.batch.count for block in blocks]
    columns = _keys(blocks, counts)
    columns |= _text_columns(
        [block.batch.names for block in blocks], [block.communicators for block in blocks], [b.columns for b in blocks]
    )
    for name in SPAN_DTYPES:
        if name not in {"name", "communicator"}:
            columns[name] = np.concatenate([block.columns[name] for block in blocks])
    return _table(columns)


def summary_table(blocks: Sequence[SummaryBlock]) -> Any:
    """One row per (step, rank, operation, chunk, communicator, peer)."""
    counts = [block.summary.rows for block in blocks]
    columns = _keys(blocks, counts)
    columns |= _text_columns(
        [block.summary.names for block in blocks],
        [block.communicators for block in blocks],
        [block.columns for block in blocks],
    )
    for name in SUMMARY_DTYPES:
        if name not in {"name", "communicator"}:
            columns[name] = np.concatenate([block.columns[name] for block in blocks])
    return _table(columns)


def step_table(blocks: Sequence[SummaryBlock]) -> Any:
    """One row per (step, rank)."""
    columns: dict[str, Any] = _keys(blocks, [1] * len(blocks))
    shares = np.array([step_shares(block) for block in blocks], np.int64).reshape(-1, 3)
    for name in ("start_ns", "duration_ns", "cpu_ns"):
        columns[name] = np.array([getattr(block.summary, name) for block in blocks], np.int64)
    for index, name in enumerate(("compute_ns", "wait_ns", "host_ns")):
        columns[name] = shares[:, index]
    columns["traced"] = np.array([block.summary.traced for block in blocks], np.uint8)
    columns["phases"] = np.array([sum(1 << phase for phase in b.summary.phases) for b in blocks], np.uint32)
    for name in ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tflops_per_gpu"):
        columns[name] = _progress(blocks, name)
    return _table(columns)


def step_shares(block: SummaryBlock) -> tuple[int, int, int]:
    """(compute, wait, host) of a rank's step in ns.

    compute: forward, backward and optimizer, by CPU time on CPU ranks; wait: p2p and collectives; host: the rest.
    """
    columns, names = block.columns, block.summary.names
    compute = np.array([name in COMPUTE_NAMES for name in names], bool)
    is_compute = compute[columns["name"]] if len(names) else np.zeros(0, bool)
    measure = columns["cpu_sum_ns" if block.on_cpu else "duration_sum_ns"]
    compute_ns = int(measure[is_compute].sum())
    wait_ns = int(columns["duration_sum_ns"][np.isin(columns["kind"], _WAIT_KINDS)].sum())
    return compute_ns, wait_ns, max(0, block.summary.duration_ns - compute_ns - wait_ns)


def _keys(blocks: Sequence[SpanBlock] | Sequence[SummaryBlock], counts: Sequence[int]) -> dict[str, Any]:
    return {
        "step": np.repeat(np.array([block.step for block in blocks], np.uint64), counts),
        "rank": np.repeat(np.array([block.rank for block in blocks], np.uint32), counts),
        "clock_offset_ns": np.repeat(np.array([block.clock.offset_ns for block in blocks], np.int64), counts),
        "clock_error_ns": np.repeat(np.array([block.clock.error_ns for block in blocks], np.int64), counts),
    }


def _text_columns(
    names: Sequence[Sequence[str]], communicators: Sequence[Mapping[int, str]], columns: Sequence[Mapping[str, Column]]
) -> dict[str, Any]:
    name_ids: dict[str, int] = {}
    communicator_ids: dict[str, int] = {"": 0}
    name_parts, communicator_parts = [], []
    for table, ids, block in zip(names, communicators, columns, strict=True):
        lookup = np.array([name_ids.setdefault(name, len(name_ids)) for name in table] or [0], np.int32)
        name_parts.append(lookup[block["name"]])
        communicator_parts.append(_communicators(block["communicator"], ids, communicator_ids))
    return {
        "name": _dictionary(np.concatenate(name_parts), list(name_ids) or [""]),
        "communicator": _dictionary(np.concatenate(communicator_parts), list(communicator_ids)),
    }


def _communicators(column: Column, ids: Mapping[int, str], known: dict[str, int]) -> npt.NDArray[np.int32]:
    highest = int(column.max()) if len(column) else 0
    if highest == 0:
        return np.zeros(len(column), np.int32)
    if highest > 65_536:
        used, inverse = np.unique(column, return_inverse=True)
        lookup = np.array([known.setdefault(ids.get(int(i), ""), len(known)) for i in used], np.int32)
        return np.asarray(lookup[inverse], np.int32)
    lookup = np.zeros(highest + 1, np.int32)
    for index, text in ids.items():
        if index <= highest:
            lookup[index] = known.setdefault(text, len(known))
    return np.asarray(lookup[column], np.int32)


def _dictionary(indices: npt.NDArray[np.int32], values: list[str]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(values, pa.string()))


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
