"""Values to codes and back. A cell is a value, or in a state that every format keeps: NaN, ±Inf, masked, missing.

| codes of | values | NaN | −Inf | +Inf | masked | missing |
|---|---|---|---|---|---|---|
| i8 | −125 … 125 | −128 | −127 | 127 | −126 | 126 |
| i16 | −32765 … 32765 | −32768 | −32767 | 32767 | −32766 | 32766 |
| u8 | 0 … 250 | 255 | 251 | 252 | 253 | 254 |
| u16 | 0 … 65530 | 65535 | 65531 | 65532 | 65533 | 65534 |

In floats, masked and missing are quiet NaNs whose lowest payload bits are 1 and 2. A masked cell has no value by design
(a key after the query); a missing one is of a shard that did not come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import (
    MAX_OUTLIERS,
    NUMPY,
    Codec,
    Dtype,
    Flag,
    Frame,
    FrameError,
    Kind,
    Quantizer,
    Section,
    cells,
)

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

OUTLIER_RATIO = 32.0
"""Of |x| over asinh's k, from which on exact values are listed."""
K_RANGE = 1e6
"""k is at least the largest |x| over this."""


@dataclass(frozen=True, slots=True)
class Format:
    dtype: Dtype
    quantizer: Quantizer


FORMATS = {
    "asinh": Format(Dtype.I8, Quantizer.ASINH),
    "asinh16": Format(Dtype.I16, Quantizer.ASINH),
    "sqrt": Format(Dtype.U8, Quantizer.SQRT),
    "sqrt16": Format(Dtype.U16, Quantizer.SQRT),
    "affine": Format(Dtype.U8, Quantizer.AFFINE),
    "affine_row": Format(Dtype.U8, Quantizer.AFFINE_ROW),
    "affine_column": Format(Dtype.U8, Quantizer.AFFINE_COLUMN),
    "f16": Format(Dtype.F16, Quantizer.NONE),
    "bf16": Format(Dtype.BF16, Quantizer.NONE),
    "f32": Format(Dtype.F32, Quantizer.NONE),
}


@dataclass(frozen=True, slots=True)
class Codes:
    """What integers of a dtype mean."""

    largest: int
    nan: int
    low: int
    high: int
    masked: int
    missing: int


CODES = {
    Dtype.I8: Codes(125, -128, -127, 127, -126, 126),
    Dtype.I16: Codes(32765, -32768, -32767, 32767, -32766, 32766),
    Dtype.U8: Codes(250, 255, 251, 252, 253, 254),
    Dtype.U16: Codes(65530, 65535, 65531, 65532, 65533, 65534),
}
MASKED, MISSING = np.array([0x7FC00001, 0x7FC00002], "<u4").view("<f4")
"""As f32."""


@dataclass(frozen=True, slots=True)
class Values:
    """An array and which of its cells have no value; `masked` and `missing` None: none. Such cells hold NaN."""

    array: Floats
    masked: npt.NDArray[np.bool_] | None = None
    missing: npt.NDArray[np.bool_] | None = None

    @property
    def absent(self) -> npt.NDArray[np.bool_]:
        none = np.zeros(self.array.shape, bool)
        for cells_without in (self.masked, self.missing):
            if cells_without is not None:
                none |= cells_without
        return none

    def reshape(self, shape: tuple[int, ...]) -> Values:
        masks = (None if each is None else each.reshape(shape) for each in (self.masked, self.missing))
        return Values(self.array.reshape(shape), *masks)

    def states(self) -> Floats:
        """One array, where masked and missing cells are their NaNs."""
        array = np.array(self.array, np.float32)
        bits: Array = array.view(np.uint32)
        bits[np.isnan(array)] = 0x7FC00000
        for cells_without, state in ((self.masked, 0x7FC00001), (self.missing, 0x7FC00002)):
            if cells_without is not None:
                bits[cells_without] = state
        return array


def of_states(array: Floats) -> Values:
    bits = array.view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    masked, missing = nan & (bits & 3 == 1), nan & (bits & 3 == 2)
    return Values(array, masked if masked.any() else None, missing if missing.any() else None)


def encode(values: Values, name: str) -> Frame:
    """A raw frame: dims, dtype, scale, bias, range, outliers, flags. `name` is one of FORMATS.

    Raises DataError for another name or too many dims.
    """
    if name not in FORMATS or values.array.ndim > 4:
        raise DataError(f"quantiser {name} of {values.array.ndim} dims; one of {', '.join(FORMATS)}, at most 4")
    how = FORMATS[name]
    states = np.atleast_1d(values.states())
    finite = np.isfinite(states)
    known = states[finite]
    low, high = (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
    frame = Frame(dtype=how.dtype, quantizer=how.quantizer, dims=values.array.shape, low=low, high=high)
    sections: dict[Section, bytes] = {}
    scale, bias, flags = 1.0, 0.0, Flag(0)
    if how.quantizer is Quantizer.NONE:
        payload = _floats(states, how.dtype)
    else:
        scale, bias, table = _scales(states, finite, how)
        if table is not None:
            sections[Section.SCALES] = table.tobytes()
        codes, clipped = _codes(states, finite, how, scale, bias, table)
        payload = codes.tobytes()
        flags |= Flag.CLIPPED if clipped else Flag(0)
    if how.quantizer is Quantizer.ASINH and (outliers := _outliers(states, finite, bias)):
        sections[Section.OUTLIERS] = outliers
        flags |= Flag.OUTLIERS
    wrong = ~finite & ~np.atleast_1d(values.absent)
    if wrong.any():
        flags |= Flag.NONFINITE
        sections[Section.FIRST_NONFINITE] = np.array([wrong.reshape(-1).argmax()], "<u8").tobytes()
    return _replaced(frame, scale, bias, flags, sections, payload)


def exact(values: Values, *, finite: bool = False) -> Frame:
    """Float32 as they are: what a rank sends its agent, without the range and flags of `encode`, which take time.
    `finite`: all are known to be numbers; the payload is a view of them then."""
    array = np.ascontiguousarray(values.array if finite else values.states(), "<f4")
    return Frame(dims=values.array.shape, payload=array.reshape(-1).view(np.uint8).data)


def decode(frame: Frame) -> Values:
    """The values of a TENSOR. Raises FrameError."""
    if frame.kind is not Kind.TENSOR:
        raise FrameError(f"a {frame.kind.name} is no tensor")
    array = np.atleast_1d(cells(frame))
    exact = frame.quantizer is Quantizer.NONE
    values = of_states(_as_float32(array, frame.dtype)) if exact else _decoded(array, frame)
    if frame.codec is Codec.TRIANGLE:
        above = np.triu(np.ones(frame.dims[-2:], bool), 1)
        masked = np.broadcast_to(above, frame.dims)
        values.array[masked] = np.nan
        values = Values(values.array, masked if values.masked is None else values.masked | masked, values.missing)
    return values if frame.dims else values.reshape(())


def _decoded(array: Array, frame: Frame) -> Values:
    codes = CODES[frame.dtype]
    raw = array.astype(np.float64)
    scale: Any = frame.scale
    bias: Any = frame.bias
    if frame.quantizer in (Quantizer.AFFINE_ROW, Quantizer.AFFINE_COLUMN):
        table = np.frombuffer(frame.sections.get(Section.SCALES, b""), "<f4").astype(np.float64).reshape(-1, 2)
        shape = (-1,) if frame.quantizer is Quantizer.AFFINE_COLUMN else (*frame.dims[:-1], 1)
        scale, bias = table[:, 0].reshape(shape), table[:, 1].reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        if frame.quantizer is Quantizer.ASINH:
            result = bias * np.sinh(raw * scale)
        elif frame.quantizer is Quantizer.SQRT:
            result = scale * raw * raw
        else:
            result = bias + scale * raw
        values = result.astype(np.float32)
    if Section.OUTLIERS in frame.sections:
        pairs = np.frombuffer(frame.sections[Section.OUTLIERS], "<u4")
        values.reshape(-1)[pairs[::2]] = pairs[1::2].view("<f4")
    masked, missing = array == codes.masked, array == codes.missing
    values[masked | missing | (array == codes.nan)] = np.nan
    values[array == codes.low] = -np.inf
    values[array == codes.high] = np.inf
    return Values(values, masked if masked.any() else None, missing if missing.any() else None)


def _replaced(
    frame: Frame, scale: float, bias: float, flags: Flag, sections: dict[Section, bytes], payload: bytes
) -> Frame:
    return Frame(
        dtype=frame.dtype,
        quantizer=frame.quantizer,
        dims=frame.dims,
        low=frame.low,
        high=frame.high,
        scale=scale,
        bias=bias,
        flags=flags,
        sections=sections,
        payload=payload,
    )


def _scales(states: Floats, finite: npt.NDArray[np.bool_], how: Format) -> tuple[float, float, Array | None]:
    """scale, bias, and the table of rows or columns; in f32, as the other side will read them."""
    largest = CODES[how.dtype].largest
    known = states[finite].astype(np.float64)
    if how.quantizer is Quantizer.ASINH:
        k = asinh_k(known)
        reach = math.asinh(float(np.abs(known).max()) / k) if known.size else 0.0
        return _f32(reach / largest) or 1.0, k, None
    if how.quantizer is Quantizer.SQRT:
        high = float(known.max()) if known.size else 0.0
        return _f32(max(high, 0.0) / largest**2) or 1.0, 0.0, None
    if how.quantizer is Quantizer.AFFINE:
        return *_affine(known, largest), None
    columns = how.quantizer is Quantizer.AFFINE_COLUMN
    rows = states.reshape(-1, states.shape[-1] if states.ndim else 1)
    rows = rows.T if columns else rows
    table = np.array([_affine(row[np.isfinite(row)].astype(np.float64), largest) for row in rows], "<f4")
    return 1.0, 0.0, table.reshape(-1, 2)


def asinh_k(known: npt.NDArray[np.float64]) -> float:
    """Where asinh turns from linear to logarithmic: the geometric mean of |x| over what is not 0, which few outliers
    hardly move; a sum over logarithms, so that a device has it in one pass."""
    magnitudes = np.abs(known[known != 0])
    if not magnitudes.size:
        return 1.0
    return _f32(max(float(np.exp(np.log(magnitudes).mean())), float(magnitudes.max()) / K_RANGE)) or 1.0


def _affine(known: npt.NDArray[np.float64], largest: int) -> tuple[float, float]:
    if not known.size:
        return 1.0, 0.0
    low, high = float(known.min()), float(known.max())
    return min(_f32((high - low) / largest), 3e38) or 1.0, _f32(low)


def _codes(
    states: Floats, finite: npt.NDArray[np.bool_], how: Format, scale: float, bias: float, table: Array | None
) -> tuple[Array, bool]:
    codes = CODES[how.dtype]
    known = np.where(finite, states, 0.0).astype(np.float64)
    clipped = False
    if how.quantizer is Quantizer.ASINH:
        raw = np.arcsinh(known / bias) / scale
    elif how.quantizer is Quantizer.SQRT:
        clipped = bool((known < 0).any())
        raw = np.sqrt(np.maximum(known, 0.0) / scale)
    elif table is None:
        raw = (known - bias) / scale
    else:
        columns = how.quantizer is Quantizer.AFFINE_COLUMN
        scales, biases = table.astype(np.float64).T.reshape(2, *((-1,) if columns else (*states.shape[:-1], 1)))
        raw = (known - biases) / scales
    least = -codes.largest if how.quantizer is Quantizer.ASINH else 0
    result = np.clip(np.rint(raw), least, codes.largest).astype(NUMPY[how.dtype])
    of = of_states(states)
    result[np.isnan(states)] = codes.nan
    result[states == -np.inf] = codes.low
    result[states == np.inf] = codes.high
    for cells_without, code in ((of.masked, codes.masked), (of.missing, codes.missing)):
        if cells_without is not None:
            result[cells_without] = code
    return result, clipped


def _outliers(states: Floats, finite: npt.NDArray[np.bool_], k: float) -> bytes:
    flat = np.where(finite, states, 0.0).reshape(-1)
    far = np.flatnonzero(np.abs(flat) > OUTLIER_RATIO * k)
    farthest = far[np.argsort(-np.abs(flat[far]), kind="stable")[:MAX_OUTLIERS]]
    pairs = np.empty((len(farthest), 2), "<u4")
    pairs[:, 0] = farthest
    pairs[:, 1] = flat[farthest].astype("<f4").view("<u4")
    return pairs.tobytes()


def _floats(states: Floats, dtype: Dtype) -> bytes:
    if dtype is Dtype.F32:
        return states.astype("<f4").tobytes()
    bits = states.view(np.uint32)
    nan = np.isnan(states)
    if dtype is Dtype.F16:
        with np.errstate(over="ignore"):
            half = states.astype("<f2").view("<u2")
        state = 0x7E00
    else:
        # To nearest, ties to even, as torch does it.
        half = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        state = 0x7FC0
    return np.where(nan, state | (bits & 3), half).astype("<u2").tobytes()


def _as_float32(array: Array, dtype: Dtype) -> Floats:
    if dtype is Dtype.F32:
        return array.astype(np.float32)
    if dtype is Dtype.F64:
        return array.astype(np.float32)
    nan_bits = array.astype(np.uint32) & 3
    if dtype is Dtype.BF16:
        values = (array.astype(np.uint32) << 16).view(np.float32)
    else:
        values = array.view("<f2").astype(np.float32)
    bits = values.view(np.uint32)
    nan = np.isnan(values)
    bits[nan] = 0x7FC00000 | nan_bits[nan]
    return values


def _f32(value: float) -> float:
    return float(np.float32(value))
