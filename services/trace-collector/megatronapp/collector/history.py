"""A run over its steps: one row per step of all ranks together, which outlives the traces, and thinned on the way out.

Rows of one step from several writes are joined by operations that take any order (least, most, sum), so that ranks may
report in different writes. Thinning joins neighbouring steps into bins and keeps the least, the most and the mean of
each: a spike of one step in ten thousand is seen, which a sample would lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.v1 import trace_pb2

Columns = dict[str, npt.NDArray[Any]]
"""Of one length, ordered by step."""

PROGRESS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tflops_per_gpu")
MIN_BINS = 3
"""Of an attempt: its first step, its last one, and what lies between."""
DEFAULT_BINS = 1_000
MAX_BINS = 100_000
"""Of one answer: 20 MB."""
NS = 1e-9

_LEAST = {"start_ns": np.int64}
_MOST = {
    "duration_ns": np.int64,
    "checkpoint_ns": np.int64,
    "evaluation_ns": np.int64,
    "device_memory_bytes": np.uint64,
    "host_memory_bytes": np.uint64,
}
_SUM = {"ranks": np.uint32, "duration_sum_seconds": np.float64, "p2p_sum_seconds": np.float64}
"""Times as floats: those of a million ranks, each of three years, overflow no sum."""
_BITS = {"phases": np.uint32, "reported": np.uint8}


def of_steps(steps: Any) -> Any:
    """Rows of a step table (tables.step_table) → a history table."""
    columns = {name: steps[name].to_numpy() for name in steps.column_names}
    rows: Columns = {
        "step": columns["step"],
        "start_ns": columns["start_ns"] + columns["clock_offset_ns"],
        "ranks": np.ones(len(steps), np.uint32),
        "duration_ns": columns["duration_ns"],
        "duration_sum_seconds": columns["duration_ns"] * NS,
        "p2p_sum_seconds": columns["p2p_ns"] * NS,
        "checkpoint_ns": columns["checkpoint_ns"],
        "evaluation_ns": columns["evaluation_ns"],
        "device_memory_bytes": columns["peak_allocated_bytes"],
        "host_memory_bytes": columns["host_bytes"],
        "phases": columns["phases"],
        "reported": columns["reported"],
        **{name: columns[name] for name in PROGRESS},
    }
    return table(joined(rows))


def table(columns: Columns) -> Any:
    """As it lies in the store."""
    import pyarrow as pa

    made = pa.table(columns)
    return made.cast(pa.schema([field.with_nullable(False) for field in made.schema]))


def read(tables: Iterable[Any]) -> Columns:
    """The rows of history tables, one per step, ascending."""
    found = [{name: table[name].to_numpy() for name in table.column_names} for table in tables]
    names = ("step", *_LEAST, *_MOST, *_SUM, *_BITS, *PROGRESS)
    empty = {name: np.empty(0, _dtype(name)) for name in names}
    return joined({name: np.concatenate([empty[name], *(each[name] for each in found)]) for name in names})


def joined(rows: Columns) -> Columns:
    """One row per step, ascending."""
    order = np.argsort(rows["step"], kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    step = rows["step"]
    if not len(step):
        return rows
    starts = np.flatnonzero(np.concatenate([[True], np.diff(step) != 0]))
    result: Columns = {"step": step[starts]}
    for names, operation in ((_LEAST, np.minimum), (_MOST, np.maximum), (_SUM, np.add), (_BITS, np.bitwise_or)):
        result |= {name: operation.reduceat(rows[name].astype(dtype), starts) for name, dtype in names.items()}
    # All ranks that know a value know the same one.
    return result | {name: np.fmax.reduceat(rows[name].astype(np.float64), starts) for name in PROGRESS}


@dataclass(frozen=True, slots=True)
class Range:
    """What was asked for: steps, and Unix times in ns, both inclusive; 0: no bound."""

    from_step: int = 0
    to_step: int = 0
    from_unix_ns: int = 0
    to_unix_ns: int = 0

    def of(self, rows: Columns) -> Columns:
        step, start = rows["step"], rows["start_ns"]
        wanted = (step >= self.from_step) & (start >= self.from_unix_ns)
        if self.to_step:
            wanted &= step <= self.to_step
        if self.to_unix_ns:
            wanted &= start <= self.to_unix_ns
        return {name: column[wanted] for name, column in rows.items()}


def bin_starts(start_ns: npt.NDArray[np.int64], bins: int, *, by_time: bool) -> npt.NDArray[np.intp]:
    """Indices at which bins begin: at most `bins` (MIN_BINS at least); the first and the last row have their own."""
    count = len(start_ns)
    if count <= max(bins, MIN_BINS):
        return np.arange(count)
    inner = max(bins, MIN_BINS) - 2
    if not by_time:
        return np.concatenate([[0], 1 + np.arange(inner) * (count - 2) // inner, [count - 1]])
    # A clock may be set back: what begins before its predecessor counts as beginning with it.
    inside = np.maximum.accumulate(start_ns[1:-1]).astype(np.float64)
    width = max(inside[-1] - inside[0], 1.0) / inner
    number = np.minimum((inside - inside[0]) / width, inner - 1).astype(np.intp)
    return np.concatenate([[0], 1 + np.flatnonzero(np.diff(number, prepend=-1)), [count - 1]])


def attempt_bins(rows: Columns, bins: int, *, by_time: bool, pipeline: bool) -> trace_pb2.AttemptHistory:
    """The rows of one attempt in bins; `pipeline`: whether it has several stages, so that there is a bubble at all."""
    if not len(rows["step"]):
        return trace_pb2.AttemptHistory()
    starts = bin_starts(rows["start_ns"], bins, by_time=by_time)
    ends = np.append(starts[1:], len(rows["step"])) - 1
    stage_wait = rows["p2p_sum_seconds"] / np.maximum(rows["ranks"], 1) / NS * pipeline
    finish = rows["start_ns"] + rows["duration_ns"]
    sums = {
        "duration_ns": rows["duration_ns"],
        "stage_wait_ns": stage_wait,
        "checkpoint_ns": rows["checkpoint_ns"],
        "evaluation_ns": rows["evaluation_ns"],
    }
    result = trace_pb2.AttemptHistory(
        count=len(starts),
        bin_first_step=_bytes(rows["step"][starts], "<u8"),
        bin_last_step=_bytes(rows["step"][ends], "<u8"),
        bin_steps=_bytes(ends - starts + 1, "<u4"),
        start_ns=_bytes(np.minimum.reduceat(rows["start_ns"], starts), "<i8"),
        end_ns=_bytes(np.maximum.reduceat(finish, starts), "<i8"),
        phases=_bytes(np.bitwise_or.reduceat(rows["phases"], starts), "<u4"),
        series=[_series(name, *values, starts) for name, values in _values(rows, pipeline=pipeline).items()],
    )
    for name, column in sums.items():
        setattr(result, name, _bytes(np.add.reduceat(column.astype(np.float64), starts), "<f8"))
    return result


def share(bins: int, counts: Sequence[int]) -> list[int]:
    """Bins for each attempt, in proportion to its steps and MIN_BINS at least."""
    total = max(1, sum(counts))
    return [max(MIN_BINS, bins * count // total) for count in counts]


def _values(rows: Columns, *, pipeline: bool) -> Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Each value over the steps, nan where it is not known, and where it was told and is no number."""
    silent = np.zeros(len(rows["step"]), bool)
    ratio = rows["p2p_sum_seconds"] / np.maximum(rows["duration_sum_seconds"], NS)
    values = {
        "step_seconds": (np.where(rows["duration_ns"] > 0, rows["duration_ns"] * NS, np.nan), silent),
        "bubble_ratio": (np.minimum(ratio, 1.0) if pipeline else np.full(len(ratio), np.nan), silent),
        "device_memory_bytes": (_known(rows["device_memory_bytes"]), silent),
        "host_memory_bytes": (_known(rows["host_memory_bytes"]), silent),
    }
    for bit, name in enumerate(PROGRESS):
        finite = np.isfinite(rows[name])
        reported = (rows["reported"] >> bit & 1).astype(bool)
        values[name] = np.where(finite, rows[name], np.nan), reported & ~finite
    return values


def _series(
    name: str, values: npt.NDArray[Any], broken: npt.NDArray[Any], starts: npt.NDArray[np.intp]
) -> trace_pb2.HistorySeries:
    known = ~np.isnan(values)
    count = np.add.reduceat(known.astype(np.int64), starts)
    total = np.add.reduceat(np.where(known, values, 0.0), starts)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return trace_pb2.HistorySeries(
        name=name,
        min=_bytes(np.fmin.reduceat(values, starts), "<f8"),
        max=_bytes(np.fmax.reduceat(values, starts), "<f8"),
        mean=_bytes(mean, "<f8"),
        non_finite=_bytes(np.add.reduceat(broken.astype(np.uint32), starts), "<u4"),
    )


def _known(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.where(values > 0, values.astype(np.float64), np.nan)


def _dtype(name: str) -> Any:
    return (_LEAST | _MOST | _SUM | _BITS).get(name, np.uint64 if name == "step" else np.float64)


def _bytes(values: npt.NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype).tobytes()
