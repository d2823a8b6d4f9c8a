"""TraceBatch and StepSummary ⇄ numpy columns.

On the wire a column is as narrow as its values allow: its bytes over its rows tell the width, its type the sign. Times
count from the batch's base_ns, so that they are narrow too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_ROWS
from megatronapp.v1 import trace_pb2

Column = npt.NDArray[np.integer[Any]]
Dtype = np.dtype[np.integer[Any]]

SPAN_DTYPES: dict[str, Dtype] = {
    name: np.dtype(code)
    for name, code in {
        "start_ns": "<i8",
        "duration_ns": "<i8",
        "enqueue_ns": "<i8",
        "cpu_ns": "<i8",
        "name": "<u2",
        "communicator": "<u4",
        "kind": "<u1",
        "stream": "<u1",
        "microbatch": "<i4",
        "chunk": "<i2",
        "layer": "<i2",
        "peer": "<i4",
        "sequence": "<u8",
        "bytes": "<u8",
        "tokens": "<u8",
        "length_squares": "<u8",
        "message": "<u8",
    }.items()
}

SUMMARY_DTYPES: dict[str, Dtype] = {
    name: np.dtype(code)
    for name, code in {
        "name": "<u2",
        "kind": "<u1",
        "chunk": "<i2",
        "communicator": "<u4",
        "count": "<u4",
        "duration_sum_ns": "<i8",
        "duration_min_ns": "<i8",
        "duration_max_ns": "<i8",
        "cpu_sum_ns": "<i8",
        "cpu_min_ns": "<i8",
        "cpu_max_ns": "<i8",
        "launch_lag_sum_ns": "<i8",
        "launch_lag_max_ns": "<i8",
        "tokens": "<u8",
        "length_squares": "<u8",
        "bytes": "<u8",
        "peer": "<i4",
        "starved_count": "<u4",
        "starved_sum_ns": "<i8",
        "starved_tokens": "<u8",
        "starved_length_squares": "<u8",
    }.items()
}

NONE = {"microbatch": -1, "chunk": -1, "layer": -1, "peer": -1}
"""Value of a column that was left empty, where it is not 0."""

ALWAYS_SENT = "start_ns"
"""A span without a beginning is refused, so that beginnings of 0 are sent, too."""

TIMES = ("start_ns", "enqueue_ns")
"""Columns that count from base_ns; an enqueue_ns of 0 is none all the same."""

_WIDTHS = (1, 2, 4, 8)


class Columns(Mapping[str, Column]):
    """A message's columns: lengths are checked at once, values decoded when they are asked for.

    Indexing gives an array of `rows` entries in the column's own type; `sent` what came, and costs nothing.
    """

    __slots__ = ("_data", "_dtypes", "base_ns", "rows")

    def __init__(self, message: Message, dtypes: Mapping[str, Dtype], rows: int, base_ns: int = 0) -> None:
        if rows > MAX_ROWS:
            raise DataError(f"a message holds {rows} rows; at most {MAX_ROWS} are accepted")
        self.rows = rows
        self.base_ns = base_ns
        self._dtypes = dtypes
        self._data: dict[str, bytes] = {name: data for name in dtypes if (data := getattr(message, name))}
        for name, data in self._data.items():
            if len(data) not in _lengths(rows, dtypes[name].itemsize):
                needed = ", ".join(map(str, _lengths(rows, dtypes[name].itemsize)))
                raise DataError(f"column {name} holds {len(data)} bytes; {rows} rows need one of {needed}")

    def __getitem__(self, name: str) -> Column:
        sent = self.sent(name)
        if sent is None:
            return _nothing(NONE.get(name, 0), self._dtypes[name], self.rows)
        return self._wide(name, sent)

    def __iter__(self) -> Iterator[str]:
        return iter(self._dtypes)

    def __len__(self) -> int:
        return len(self._dtypes)

    def dtype(self, name: str) -> Dtype:
        """The column's own type."""
        return self._dtypes[name]

    def data(self, name: str) -> bytes:
        """The column's bytes as they came; empty: none everywhere."""
        return self._data.get(name, b"")

    def sent(self, name: str) -> Column | None:
        """The column as narrow as it came, times counted from base_ns; None: none everywhere."""
        data = self._data.get(name)
        if data is None:
            return None
        return np.frombuffer(data, _narrow_type(self._dtypes[name].kind, len(data) // self.rows))

    @property
    def empty(self) -> bool:
        """Whether no column was sent."""
        return not self._data

    def widths(self) -> Iterator[tuple[str, int]]:
        """Of the columns that came: in how many bytes a value did."""
        if self.rows:
            for name, data in self._data.items():
                yield name, len(data) // self.rows

    def take(self, name: str, rows: npt.NDArray[np.integer]) -> Column:
        """The values of some rows, without decoding the others."""
        sent = self.sent(name)
        if sent is None:
            return _nothing(NONE.get(name, 0), self._dtypes[name], len(rows))
        return self._wide(name, sent[rows])

    def first(self, name: str) -> int:
        """The value of the first row, of which there is one."""
        return int(self.take(name, _FIRST)[0])

    def _wide(self, name: str, sent: Column) -> Column:
        column = sent.astype(self._dtypes[name], copy=False)
        return _from_base(name, column, self.base_ns) if self.base_ns and name in TIMES else column


_FIRST = np.zeros(1, np.intp)


def joined(tables: Sequence[Columns], name: str) -> Column:
    """A column of several messages of one kind, one behind the other."""
    dtype = tables[0].dtype(name) if tables else np.dtype(np.int64)
    rows = np.array([table.rows for table in tables], np.int64)
    out = _join([table.data(name) for table in tables], rows, name, dtype)
    if name in TIMES:
        at = 0
        for table in tables:
            part = out[at : at + table.rows]
            np.add(part, table.base_ns, out=part, where=part != 0 if name == "enqueue_ns" else True)
            at += table.rows
    return out


def spread(values: Sequence[int], rows: Sequence[int], dtype: npt.DTypeLike) -> Column:
    """Each value as often as it has rows: np.repeat for few values with many rows each, in a fraction of its time."""
    out: Column = np.empty(sum(rows), dtype)
    at = 0
    for value, count in zip(values, rows, strict=True):
        out[at : at + count] = value
        at += count
    return out


def joined_summaries(summaries: Sequence[trace_pb2.StepSummary]) -> dict[str, Column]:
    """All columns of many summaries, one behind the other: what summary_columns gives of each, in a fraction of the
    time. Raises DataError when one of them can't be understood; summary_columns tells which."""
    rows = np.array([summary.rows for summary in summaries], np.int64)
    if len(rows) and rows.max() > MAX_ROWS:
        raise DataError(f"a message holds {rows.max()} rows; at most {MAX_ROWS} are accepted")
    table = {
        name: _join([getattr(summary, name) for summary in summaries], rows, name, dtype)
        for name, dtype in SUMMARY_DTYPES.items()
    }
    names = np.repeat(np.array([len(summary.names) for summary in summaries], np.int64), rows)
    if (table["name"] >= names).any():
        raise DataError("a row names an entry behind its table of names")
    return table


def _join(data: Sequence[bytes], rows: npt.NDArray[np.int64], name: str, dtype: Dtype) -> Column:
    """The values of one column of messages with that many rows each. Raises DataError for a wrong length."""
    if not any(data):
        return np.full(rows.sum(), NONE.get(name, 0), dtype)
    lengths = np.array(list(map(len, data)), np.int64)
    widths = lengths // np.maximum(rows, 1)
    kinds = set(widths[rows > 0].tolist())
    if (widths * rows != lengths).any() or not kinds <= {0, *_WIDTHS[: _WIDTHS.index(dtype.itemsize) + 1]}:
        raise DataError(f"the length of column {name} does not fit its rows")
    if len(kinds) == 1:
        return np.frombuffer(b"".join(data), _narrow_type(dtype.kind, kinds.pop())).astype(dtype)
    out: Column = np.full(rows.sum(), NONE.get(name, 0), dtype)
    for width in kinds - {0}:
        part = b"".join([each for each, own in zip(data, (widths == width).tolist(), strict=True) if own])
        out[np.repeat(widths == width, rows)] = np.frombuffer(part, _narrow_type(dtype.kind, width))
    return out


NO_COLUMNS = Columns(trace_pb2.TraceBatch(), SPAN_DTYPES, 0)


def span_columns(batch: trace_pb2.TraceBatch, offset_ns: int = 0) -> Columns:
    """The batch's columns, each of `batch.count` rows; times moved by `offset_ns`.

    Raises DataError when a column's length does not fit, or a name index points nowhere.
    """
    columns = Columns(batch, SPAN_DTYPES, batch.count, batch.base_ns + offset_ns)
    _check_names(columns.sent("name"), columns.rows, len(batch.names))
    return columns


def summary_columns(summary: trace_pb2.StepSummary) -> Columns:
    """The summary's columns, each of `summary.rows` rows. Raises DataError as span_columns does."""
    columns = Columns(summary, SUMMARY_DTYPES, summary.rows)
    _check_names(columns.sent("name"), columns.rows, len(summary.names))
    return columns


def fill_spans(batch: trace_pb2.TraceBatch, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the batch and set its count and base_ns; one that says "none everywhere" is left empty."""
    arrays = _arrays(SPAN_DTYPES, columns)
    fill_batches([batch], arrays, _whole(arrays))


def fill_summary(summary: trace_pb2.StepSummary, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the summary and set its rows."""
    arrays = _arrays(SUMMARY_DTYPES, columns)
    fill_summaries([summary], arrays, _whole(arrays))


def fill_batches(
    batches: Sequence[trace_pb2.TraceBatch], columns: Mapping[str, npt.ArrayLike], bounds: npt.NDArray[np.int64]
) -> None:
    """As fill_spans, for many at once: of batch i are rows bounds[i] to bounds[i + 1], the first bound being 0."""
    arrays = _arrays(SPAN_DTYPES, columns)
    filled = [batch for batch, rows in zip(batches, np.diff(bounds), strict=True) if rows]
    bounds = np.unique(bounds)
    if filled and "start_ns" in arrays:
        start, enqueue = arrays["start_ns"], arrays.get("enqueue_ns", np.zeros(len(arrays["start_ns"]), np.int64))
        bases = _bases_ns(start, enqueue, bounds)
        base_ns = np.repeat(bases, np.diff(bounds))
        arrays["start_ns"] = np.subtract(start, base_ns)
        if "enqueue_ns" in arrays:
            arrays["enqueue_ns"] = np.where(enqueue != 0, np.subtract(enqueue, base_ns), 0)
        for batch, base in zip(filled, bases, strict=True):
            batch.base_ns = base
    for batch, rows in zip(filled, np.diff(bounds).tolist(), strict=True):
        batch.count = rows
    _encode(filled, arrays, bounds)


def fill_summaries(
    summaries: Sequence[trace_pb2.StepSummary], columns: Mapping[str, npt.ArrayLike], bounds: npt.NDArray[np.int64]
) -> None:
    """As fill_summary, for many at once: of summary i are rows bounds[i] to bounds[i + 1], the first bound being 0."""
    filled = [summary for summary, rows in zip(summaries, np.diff(bounds), strict=True) if rows]
    bounds = np.unique(bounds)
    for summary, rows in zip(filled, np.diff(bounds).tolist(), strict=True):
        summary.rows = rows
    _encode(filled, _arrays(SUMMARY_DTYPES, columns), bounds)


def _whole(arrays: Mapping[str, Column]) -> npt.NDArray[np.int64]:
    return np.array([0, len(next(iter(arrays.values()), ()))])


def _arrays(dtypes: Mapping[str, Dtype], columns: Mapping[str, npt.ArrayLike]) -> dict[str, Column]:
    unknown = columns.keys() - dtypes.keys()
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    arrays = {name: np.ascontiguousarray(column, dtypes[name]) for name, column in columns.items()}
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns differ in length: {sorted(lengths)}")
    return arrays


def _bases_ns(start: Column, enqueue: Column, bounds: npt.NDArray[np.int64]) -> list[int]:
    """Of each batch one less than its earliest time, so that none becomes 0; 0 where it would make nothing narrower."""
    enqueue = np.where(enqueue != 0, enqueue, start)
    first = np.minimum.reduceat(np.minimum(start, enqueue), bounds[:-1]).tolist()
    last = np.maximum.reduceat(np.maximum(start, enqueue), bounds[:-1]).tolist()
    return [low - 1 if high - low < 2**31 - 1 and low > -(2**63) else 0 for low, high in zip(first, last, strict=True)]


def _encode(messages: Sequence[Message], arrays: Mapping[str, Column], bounds: npt.NDArray[np.int64]) -> None:
    """`bounds` ascend: each message has rows. What is narrow in one of them is made narrow once for all."""
    if not messages:
        return
    # One table, since a call per column costs more than the work in it. What is above int64 shows as negative.
    table = np.array(list(arrays.values()), np.int64)
    low, high = (ufunc.reduceat(table, bounds[:-1], axis=1).tolist() for ufunc in (np.minimum, np.maximum))
    rows = list(pairwise(bounds.tolist()))
    for (name, array), lows, highs in zip(arrays.items(), low, high, strict=True):
        nothing, narrowed = NONE.get(name, 0), dict[Dtype, bytes]()
        for message, (begin, end), least, most in zip(messages, rows, lows, highs, strict=True):
            if name == ALWAYS_SENT or not least == most == nothing:
                dtype = _narrowest(array.dtype, least, most)
                data = narrowed.get(dtype)
                if data is None:
                    data = narrowed[dtype] = array.astype(dtype).tobytes()
                setattr(message, name, data[begin * dtype.itemsize : end * dtype.itemsize])


def _narrowest(dtype: Dtype, low: int, high: int) -> Dtype:
    """Of the types of one sign that take values from `low` to `high`."""
    for narrow, least, most in _narrower(dtype):
        if least <= low and high <= most:
            return narrow
    return dtype


@lru_cache(maxsize=64)
def _narrower(dtype: Dtype) -> tuple[tuple[Dtype, int, int], ...]:
    """The types of the same sign with fewer bytes, narrowest first, with their least and greatest values."""
    types = [_narrow_type(dtype.kind, width) for width in _WIDTHS if width < dtype.itemsize]
    return tuple((narrow, int(np.iinfo(narrow).min), int(np.iinfo(narrow).max)) for narrow in types)


@lru_cache(maxsize=64)
def _narrow_type(kind: str, width: int) -> Dtype:
    return np.dtype(f"<{kind}{width}")


@lru_cache(maxsize=4096)
def _lengths(rows: int, itemsize: int) -> tuple[int, ...]:
    return tuple(rows * width for width in _WIDTHS if width <= itemsize)


@lru_cache(maxsize=4096)
def _nothing(value: int, dtype: Dtype, rows: int) -> Column:
    """A read-only column of one value that takes no memory."""
    return np.broadcast_to(np.array(value, dtype), (rows,))


def _from_base(name: str, column: Column, base_ns: int) -> Column:
    times: Column = np.add(column, base_ns)
    return np.where(column != 0, times, 0) if name == "enqueue_ns" else times


def _check_names(index: Column | None, rows: int, names: int) -> None:
    highest = int(index.max()) if index is not None else 0
    if rows and highest >= names:
        raise DataError(f"a row names entry {highest} of a table of {names} names")
