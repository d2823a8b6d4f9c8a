"""What a reduction gives, and its frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.scope.frame import Dtype, Frame, FrameError, Kind, Section, cells
from megatronapp.core.scope.quantize import Values, decode, encode

NO_INDEX = 0xFFFFFFFF
"""Of a top-k: there are fewer values than k."""


@dataclass(frozen=True, slots=True)
class Partial:
    """What has to be merged with that of other shards: [components, *dims], f64."""

    components: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram along the last axis, u32."""

    counts: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Top:
    """[*rows, k] indexes and values, largest first, and [*rows] log-sum-exp of all values of the row."""

    indexes: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float32]
    log_sum_exp: npt.NDArray[np.float32]


Result = Values | Partial | Counts | Top


def dims(result: Result) -> tuple[int, ...]:
    match result:
        case Values(array=array):
            return array.shape
        case Partial(components=components):
            return components.shape[1:]
        case Counts(counts=counts):
            return counts.shape
        case Top(indexes=indexes):
            return indexes.shape


def to_frame(result: Result, quantizer: str) -> Frame:
    """A frame without its address; `quantizer` is for values. Raises DataError."""
    match result:
        case Values():
            return encode(result, quantizer)
        case Partial(components=components):
            return _frame(Kind.PARTIAL, Dtype.F64, result, components.astype("<f8").tobytes())
        case Counts(counts=counts):
            return _frame(Kind.HIST, Dtype.U32, result, counts.astype("<u4").tobytes())
        case Top():
            payload = result.indexes.astype("<u4").tobytes() + result.values.astype("<f4").tobytes()
            sums = result.log_sum_exp.astype("<f4").tobytes()
            return replace(
                _frame(Kind.TOPK, Dtype.U32, result, payload), sections={Section.LOG_SUM_EXP: sums} if sums else {}
            )


def of_frame(frame: Frame) -> Result:
    """Raises FrameError."""
    if frame.kind is Kind.TENSOR:
        return decode(frame)
    array: npt.NDArray[Any] = cells(frame)
    if frame.kind is Kind.PARTIAL:
        return Partial(array.astype(np.float64))
    if frame.kind is Kind.HIST:
        return Counts(array.astype(np.uint32))
    if not frame.dims or Section.LOG_SUM_EXP not in frame.sections:
        raise FrameError("a top-k without rows or without their log-sum-exp")
    sums = np.frombuffer(frame.sections[Section.LOG_SUM_EXP], "<f4").reshape(frame.dims[:-1])
    return Top(array[0].astype(np.uint32), array[1].view("<f4").astype(np.float32), sums.astype(np.float32))


def _frame(kind: Kind, dtype: Dtype, result: Result, payload: bytes) -> Frame:
    return Frame(kind=kind, dtype=dtype, dims=dims(result), payload=payload)
