"""TraceBatch and StepSummary ⇄ numpy columns.

On the wire a column is as narrow as its values allow: its bytes over its rows tell the width, its type the sign. Times
count from the batch's base_ns, so that they are narrow too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from megatronapp.core.errors import DataError
from megatronapp.core.trace.extents import Extent, Ints, extents_of
from megatronapp.core.trace.limits import MAX_ROWS
from megatronapp.v1 import trace_pb2

Column = npt.NDArray[np.integer[Any]]
Data = bytes | memoryview
NOTHING: Mapping[str, memoryview] = MappingProxyType({})
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

_DTYPES = SPAN_DTYPES | SUMMARY_DTYPES
_OF_SPANS, _OF_SUMMARY = attrgetter(*SPAN_DTYPES), attrgetter(*SUMMARY_DTYPES)
"""All columns of a message, as they came."""

NONE = {"microbatch": -1, "chunk": -1, "layer": -1, "peer": -1}
"""Value of a column that was left empty, where it is not 0."""

ALWAYS_SENT = "start_ns"
"""A span without a beginning is refused, so that beginnings of 0 are sent, too."""

TIMES = ("start_ns", "enqueue_ns")
"""Columns that count from base_ns; an enqueue_ns of 0 is none all the same."""

_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Which columns of a message came, and how wide: the same of most messages of a job."""

    places: Mapping[str, int]
    """Of the columns that came: which of all it is."""
    widths: tuple[tuple[str, int], ...]
    """In how many bytes a value of each came; none where there are no rows."""


@lru_cache(maxsize=1024)
def _layout(of_summary: bool, rows: int, lengths: tuple[int, ...]) -> Layout:
    """Of columns of so many bytes. Raises DataError for a wrong length."""
    dtypes = SUMMARY_DTYPES if of_summary else SPAN_DTYPES
    came = {name: (place, lengths[place]) for place, name in enumerate(dtypes) if lengths[place]}
    for name, (_, length) in came.items():
        allowed = _lengths(rows, dtypes[name].itemsize)
        if length not in allowed:
            needed = ", ".join(map(str, allowed))
            raise DataError(f"column {name} holds {length} bytes; {rows} rows need one of {needed}")
    places = {name: place for name, (place, _) in came.items()}
    return Layout(places, tuple((name, length // rows) for name, (_, length) in came.items()))


class Columns(Mapping[str, Column]):
    """A message's columns: lengths are checked at once, values decoded when they are asked for.

    Indexing gives an array of `rows` entries in the column's own type; `sent` what came, and costs nothing.
    """

    __slots__ = ("_dtypes", "base_ns", "came", "layout", "names", "rows")

    def __init__(
        self,
        message: Message,
        dtypes: Mapping[str, Dtype],
        rows: int,
        base_ns: int = 0,
        beside: Mapping[str, Data] = NOTHING,
        names: tuple[str, ...] = (),
    ) -> None:
        """beside: columns that are not in the message (skim.py). names: what its rows' names are indices of, where
        somebody will ask for them."""
        if rows > MAX_ROWS:
            raise DataError(f"a message holds {rows} rows; at most {MAX_ROWS} are accepted")
        self.rows = rows
        self.names = names
        self.base_ns = base_ns
        self._dtypes = dtypes
        of_summary = dtypes is SUMMARY_DTYPES
        came: tuple[Data, ...] = (_OF_SUMMARY if of_summary else _OF_SPANS)(message)
        if beside:
            came = tuple(beside.get(name) or data for name, data in zip(dtypes, came, strict=True))
        self.came = came
        """The bytes of all columns, in the order of the types."""
        self.layout = _layout(of_summary, rows, tuple(map(len, came)))

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

    def data(self, name: str) -> Data:
        """The column's bytes as they came; empty: none everywhere."""
        place = self.layout.places.get(name)
        return b"" if place is None else self.came[place]

    def sent(self, name: str) -> Column | None:
        """The column as narrow as it came, times counted from base_ns; None: none everywhere."""
        data = self.data(name)
        if not data:
            return None
        return np.frombuffer(data, _narrow_type(self._dtypes[name].kind, len(data) // self.rows))

    @property
    def empty(self) -> bool:
        """Whether no column was sent."""
        return not self.layout.places

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
_FEW_ROWS = 128


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


def joined_summaries(tables: Sequence[Columns]) -> dict[str, Column]:
    """All columns of many summaries, one behind the other."""
    rows = np.array([table.rows for table in tables], np.int64)
    sent = zip(*[table.came for table in tables], strict=True) if tables else repeat((), len(SUMMARY_DTYPES))
    return {
        name: _join(data, rows, name, dtype) for (name, dtype), data in zip(SUMMARY_DTYPES.items(), sent, strict=True)
    }


def _join(data: Sequence[Data], rows: npt.NDArray[np.int64], name: str, dtype: Dtype) -> Column:
    """The values of one column of messages with that many rows each."""
    if not any(data):
        return np.full(rows.sum(), NONE.get(name, 0), dtype)
    lengths = np.array(list(map(len, data)), np.int64)
    widths = lengths // np.maximum(rows, 1)
    kinds = set(widths[rows > 0].tolist())
    if len(kinds) == 1:
        return np.frombuffer(b"".join(data), _narrow_type(dtype.kind, kinds.pop())).astype(dtype)
    out: Column = np.full(rows.sum(), NONE.get(name, 0), dtype)
    for width in kinds - {0}:
        part = b"".join([each for each, own in zip(data, (widths == width).tolist(), strict=True) if own])
        out[np.repeat(widths == width, rows)] = np.frombuffer(part, _narrow_type(dtype.kind, width))
    return out


NO_COLUMNS = Columns(trace_pb2.TraceBatch(), SPAN_DTYPES, 0)


def span_columns(batch: trace_pb2.TraceBatch, offset_ns: int = 0, beside: Mapping[str, Data] = NOTHING) -> Columns:
    """The batch's columns, each of `batch.count` rows; times moved by `offset_ns`. beside: those that are not in it.

    Raises DataError when a column's length does not fit, or a name index points nowhere.
    """
    columns = Columns(batch, SPAN_DTYPES, batch.count, batch.base_ns + offset_ns, beside)
    _check_names(columns, len(batch.names))
    return columns


def summary_columns(summary: trace_pb2.StepSummary, names: tuple[str, ...] | None = None) -> Columns:
    """The summary's columns, each of `summary.rows` rows. names: the summary's, where they are known. Raises DataError
    as span_columns does."""
    columns = Columns(summary, SUMMARY_DTYPES, summary.rows, names=tuple(summary.names) if names is None else names)
    _check_names(columns, len(columns.names))
    return columns


def fill_spans(batch: trace_pb2.TraceBatch, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the batch and set its count and base_ns; one that says "none everywhere" is left empty."""
    fill_batches([batch], *_table(SPAN_DTYPES, columns))


def fill_summary(summary: trace_pb2.StepSummary, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the summary and set its rows."""
    fill_summaries([summary], *_table(SUMMARY_DTYPES, columns))


def fill_batches(
    batches: Sequence[trace_pb2.TraceBatch],
    columns: Mapping[str, Column],
    bounds: Ints,
    extents: Mapping[str, Extent],
) -> None:
    """As fill_spans, for many at once: of batch i are rows bounds[i] to bounds[i + 1], the first bound being 0.

    Columns may be of any integers, as long as their values fit their own type; `extents` is that of each.
    """
    if "start_ns" in columns:
        bases = _bases_ns(columns, bounds, extents)
        columns, extents = _from_bases(columns, bounds, extents, bases)
        for batch, base in zip(batches, bases, strict=True):
            batch.base_ns = base
    for batch, rows in zip(batches, np.diff(bounds).tolist(), strict=True):
        batch.count = rows
    _encode(batches, columns, bounds, extents)


def fill_summaries(
    summaries: Sequence[trace_pb2.StepSummary],
    columns: Mapping[str, Column],
    bounds: Ints,
    extents: Mapping[str, Extent],
) -> None:
    """As fill_summary, for many at once; arguments as of fill_batches."""
    for summary, rows in zip(summaries, np.diff(bounds).tolist(), strict=True):
        summary.rows = rows
    _encode(summaries, columns, bounds, extents)


def _table(
    dtypes: Mapping[str, Dtype], columns: Mapping[str, npt.ArrayLike]
) -> tuple[dict[str, Column], Ints, dict[str, Extent]]:
    """The columns in their own types, the bounds of the one message that they become, and their extents."""
    unknown = columns.keys() - dtypes.keys()
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    arrays = {name: np.ascontiguousarray(column, dtypes[name]) for name, column in columns.items()}
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns differ in length: {sorted(lengths)}")
    bounds = np.array([0, *lengths]) if lengths else np.zeros(2, np.int64)
    return arrays, bounds, extents_of(arrays, bounds)


def _bases_ns(columns: Mapping[str, Column], bounds: Ints, extents: Mapping[str, Extent]) -> list[int]:
    """Of each batch one less than its earliest time, so that none becomes 0; 0 where it would make nothing narrower."""
    low, high = extents["start_ns"]
    if "enqueue_ns" in columns and _any(extents["enqueue_ns"]):
        times = np.where(columns["enqueue_ns"] != 0, columns["enqueue_ns"], columns["start_ns"])
        enqueue = extents_of({"": times}, bounds)[""]
        low, high = np.minimum(low, enqueue.low), np.maximum(high, enqueue.high)
    return [
        first - 1 if rows and last - first < 2**31 - 1 and first > -(2**63) else 0
        for rows, first, last in zip(np.diff(bounds).tolist(), low.tolist(), high.tolist(), strict=True)
    ]


def _from_bases(
    columns: Mapping[str, Column], bounds: Ints, extents: Mapping[str, Extent], bases: Sequence[int]
) -> tuple[Mapping[str, Column], Mapping[str, Extent]]:
    """With times that count from their batch's base."""
    base_ns = spread(bases, np.diff(bounds).tolist(), np.int64)
    low, high = extents["start_ns"]
    columns = {**columns, "start_ns": columns["start_ns"] - base_ns}
    extents = {**extents, "start_ns": Extent(low - bases, high - bases)}
    if "enqueue_ns" in columns and _any(extents["enqueue_ns"]):
        enqueue = columns["enqueue_ns"]
        columns["enqueue_ns"] = np.where(enqueue != 0, enqueue - base_ns, 0)
        extents |= extents_of({"enqueue_ns": columns["enqueue_ns"]}, bounds)
    return columns, extents


def _any(extent: Extent) -> bool:
    """Whether a value is not 0."""
    return bool(extent.low.any() or extent.high.any())


def _encode(
    messages: Sequence[Message], columns: Mapping[str, Column], bounds: Ints, extents: Mapping[str, Extent]
) -> None:
    """What is narrow in one of the messages is made narrow once for all."""
    rows = list(pairwise(bounds.tolist()))
    widths = _widths([extents[name] for name in columns], tuple(columns), np.diff(bounds) > 0)
    for (name, column), own_widths in zip(columns.items(), widths, strict=True):
        for width in set(own_widths) - {0}:
            data = column.astype(_narrow_type(_DTYPES[name].kind, width)).tobytes()
            for message, (begin, end), own in zip(messages, rows, own_widths, strict=True):
                if own == width:
                    setattr(message, name, data[begin * width : end * width])


def _widths(extents: Sequence[Extent], names: tuple[str, ...], filled: npt.NDArray[np.bool_]) -> list[list[int]]:
    """In how many bytes a value of each column goes in each message; 0: the column is left empty."""
    if not names:
        return []
    low, high = (np.array(each) for each in zip(*extents, strict=True))
    least, most, widest, nothing, always = _limits(names)
    # A narrower type takes no value that an even narrower one does not: those that don't do are the first of them.
    narrower = ((low < least) | (high > most)).sum(axis=0)
    empty = (low == nothing) & (high == nothing) & ~always | ~filled
    widths: list[list[int]] = np.where(empty, 0, np.minimum(1 << narrower, widest)).tolist()
    return widths


@lru_cache(maxsize=64)
def _limits(names: tuple[str, ...]) -> tuple[npt.NDArray[Any], ...]:
    """Of columns, each along the last axis but one: least and greatest values of the types of 1, 2, 4 bytes, which
    stand along the first axis; bytes of their own type; the value that says none; whether that is sent, too."""
    types = [[np.iinfo(_narrow_type(_DTYPES[name].kind, width)) for name in names] for width in _WIDTHS[:-1]]
    least = np.array([[each.min for each in row] for row in types], np.int64)
    most = np.array([[each.max for each in row] for row in types], np.int64)
    widest = np.array([_DTYPES[name].itemsize for name in names])
    nothing = np.array([NONE.get(name, 0) for name in names])
    always = np.array([name == ALWAYS_SENT for name in names])
    return tuple(each[..., None] for each in (least, most, widest, nothing, always))


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


def _check_names(columns: Columns, names: int) -> None:
    data = columns.data("name")
    # Of few names the bytes are the indices, and of few rows an array costs more than a look at each.
    few = len(data) == columns.rows <= _FEW_ROWS
    highest = max(data, default=0) if few else int(columns["name"].max(initial=0))
    if columns.rows and highest >= names:
        raise DataError(f"a row names entry {highest} of a table of {names} names")
