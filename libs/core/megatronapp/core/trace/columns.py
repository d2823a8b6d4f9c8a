"""TraceBatch and StepSummary ⇄ numpy columns, without a copy where the bytes allow it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from megatronapp.core.errors import DataError
from megatronapp.v1 import trace_pb2

Column = npt.NDArray[np.generic]

SPAN_DTYPES: dict[str, np.dtype[np.generic]] = {
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
    }.items()
}

SUMMARY_DTYPES: dict[str, np.dtype[np.generic]] = {
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
    }.items()
}

NONE = {"microbatch": -1, "chunk": -1, "layer": -1, "peer": -1}
"""Value of a column that was left empty, where it is not 0."""

MAX_ROWS = 1_000_000


def span_columns(batch: trace_pb2.TraceBatch) -> dict[str, Column]:
    """The batch's columns, each of `batch.count` rows, read-only views of the message's bytes.

    Raises DataError when a column's length does not fit, or a name or kind index points nowhere.
    """
    columns = _decode(batch, SPAN_DTYPES, batch.count)
    _check_names(columns["name"], len(batch.names))
    return columns


def summary_columns(summary: trace_pb2.StepSummary) -> dict[str, Column]:
    """The summary's columns, each of `summary.rows` rows. Raises DataError as span_columns does."""
    columns = _decode(summary, SUMMARY_DTYPES, summary.rows)
    _check_names(columns["name"], len(summary.names))
    return columns


def fill_spans(batch: trace_pb2.TraceBatch, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the batch and set its count; a column that says "none everywhere" is left empty."""
    batch.count = _encode(batch, SPAN_DTYPES, columns)


def fill_summary(summary: trace_pb2.StepSummary, columns: Mapping[str, npt.ArrayLike]) -> None:
    """Write columns into the summary and set its rows."""
    summary.rows = _encode(summary, SUMMARY_DTYPES, columns)


def _decode(message: Message, dtypes: Mapping[str, np.dtype[np.generic]], rows: int) -> dict[str, Column]:
    if rows > MAX_ROWS:
        raise DataError(f"a message holds {rows} rows; at most {MAX_ROWS} are accepted")
    columns: dict[str, Column] = {}
    for name, dtype in dtypes.items():
        data: bytes = getattr(message, name)
        if not data:
            columns[name] = _nothing(NONE.get(name, 0), dtype, rows)
        elif len(data) == rows * dtype.itemsize:
            columns[name] = np.frombuffer(data, dtype)
        else:
            raise DataError(f"column {name} holds {len(data)} bytes where {rows} rows need {rows * dtype.itemsize}")
    return columns


@lru_cache(maxsize=4096)
def _nothing(value: int, dtype: np.dtype[np.generic], rows: int) -> Column:
    """A read-only column of one value that takes no memory."""
    return np.broadcast_to(np.array(value, dtype), (rows,))


def _encode(message: Message, dtypes: Mapping[str, np.dtype[np.generic]], columns: Mapping[str, npt.ArrayLike]) -> int:
    unknown = columns.keys() - dtypes.keys()
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    arrays = {name: np.ascontiguousarray(column, dtypes[name]) for name, column in columns.items()}
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns differ in length: {sorted(lengths)}")
    for name, array in arrays.items():
        empty = NONE.get(name, 0)
        setattr(message, name, b"" if (array == empty).all() else array.tobytes())
    return lengths.pop() if lengths else 0


def _check_names(index: Column, names: int) -> None:
    if len(index) and int(index.max()) >= names:
        raise DataError(f"a row names entry {int(index.max())} of a table of {names} names")
