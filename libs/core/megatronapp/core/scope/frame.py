"""Tensors on the wire: a header of 80 bytes, sections of what belongs to the payload, the payload. Little-endian.

| offset | field | | offset | field |
|---|---|---|---|---|
| 0 | u16 magic 0x5C0E | | 36 | u16 flags |
| 2 | u8 version, 1 | | 38 | u16 shards that are missing |
| 3 | u8 kind | | 40 | 4 × u32 dims, 0 beyond ndim |
| 4 | u32 subscription, between rank and gateway the tap | | 56 | f32 scale |
| 8 | u64 sequence number of the subscription | | 60 | f32 bias; of asinh its k |
| 16 | u64 when captured, Unix µs | | 64 | f32 least finite value, before quantisation |
| 24 | u32 step; of a generation the position of its last row | | 68 | f32 largest |
| 28 | u16 microbatch, 0xffff: none | | 72 | u32 bytes of the sections, a multiple of 16 |
| 30 | u16 layer, 0xffff: none | | 76 | u32 crc32 of the payload; 0: not computed |
| 32 | u8 dtype, u8 quantiser, u8 ndim, u8 codec | | 80 | sections, then the payload |

A section is u16 kind, u16 0, u32 bytes, and so many bytes, filled up with zeros to a multiple of 8.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope.token_texts import unpack_texts

MAGIC = 0x5C0E
VERSION = 1
NONE = 0xFFFF
"""Of microbatch and layer."""
MAX_DIMS = 4
MAX_FRAME_BYTES = 2 << 20
MAX_SHARD_BYTES = 32 << 20
"""Of a frame on its way from a rank to the gateway, which makes smaller ones for viewers of it."""
MAX_COMPONENTS = 4096
"""Of a partial: arrays of the dims' shape, one behind the other."""
MAX_SECTION_BYTES = 256 << 10
MAX_OUTLIERS = 64

_HEADER = struct.Struct("<HBBIQQIHHBBBBHH4IffffII")
_SECTION = struct.Struct("<HHI")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 80  # noqa: S101


class FrameError(DataError):
    """Bytes that are no frame."""


class Kind(IntEnum):
    TENSOR = 1
    PARTIAL = 2
    """Rank to gateway: components to be merged with those of other shards."""
    HIST = 3
    """Counts, along the last axis."""
    TOPK = 4
    """Indexes as u32, then as many values as f32."""


class Dtype(IntEnum):
    U8 = 1
    I8 = 2
    U16 = 3
    I16 = 4
    F16 = 5
    BF16 = 6
    F32 = 7
    F64 = 8
    U32 = 9


class Quantizer(IntEnum):
    NONE = 0
    AFFINE = 1
    """value = bias + scale · code"""
    AFFINE_ROW = 2
    """The same with a scale and bias for each row of the last axis, in SCALES."""
    AFFINE_COLUMN = 3
    """The same, for each index of the last axis."""
    ASINH = 4
    """value = bias · sinh(scale · code)"""
    SQRT = 5
    """value = scale · code²"""


class Codec(IntEnum):
    RAW = 0
    TRIANGLE = 1
    """Of the last two axes, which are equal, only indexes with column ≤ row; the rest is masked."""
    ZLIB = 2


class Flag(IntFlag):
    NONFINITE = 1
    OUTLIERS = 2
    DOWNSAMPLED = 4
    """Values stand for several cells."""
    PARTIAL = 8
    """Shards are missing; their cells say so."""
    KEYFRAME = 16
    DIFF = 32
    CLIPPED = 64
    REPLAY = 128


NO_FLAGS = Flag(0)


class Section(IntEnum):
    SCALES = 1
    """f32 pairs: scale, bias."""
    OUTLIERS = 2
    """Pairs of u32 index and f32 value, at most 64: the exact values of the farthest cells."""
    FIRST_NONFINITE = 3
    """u64 index."""
    ORIGIN = 4
    """u32 for each axis of the site: where, in the sequence, this forward's rows begin."""
    EXTENT = 5
    """u32 for each axis of the site: its size over all shards, in this forward."""
    LOG_SUM_EXP = 6
    """f32 for each row of a top-k."""
    REQUEST = 7
    """UTF-8: the generation."""
    EXPLAINED = 8
    """f32 for each principal component: its share of the variance."""
    ROWS = 9
    """Four u32 for each row of a PCA: number of its generation, from 0; step; entry of the batch; position. 2³² − 1
    where there is no such number."""
    TOKEN_TEXTS = 10
    """Of tokens' ids (`token_texts`)."""


ITEM_BYTES = {
    Dtype.U8: 1,
    Dtype.I8: 1,
    Dtype.U16: 2,
    Dtype.I16: 2,
    Dtype.F16: 2,
    Dtype.BF16: 2,
    Dtype.F32: 4,
    Dtype.F64: 8,
    Dtype.U32: 4,
}
NUMPY = {
    Dtype.U8: "<u1",
    Dtype.I8: "<i1",
    Dtype.U16: "<u2",
    Dtype.I16: "<i2",
    Dtype.F16: "<u2",
    Dtype.BF16: "<u2",
    Dtype.F32: "<f4",
    Dtype.F64: "<f8",
    Dtype.U32: "<u4",
}
"""What arrays of payloads are made of: 16-bit floats stay bits, so that every NaN comes through as it was."""
_CODES = (Dtype.U8, Dtype.U16)
_QUANTIZED = {
    Quantizer.NONE: (Dtype.F16, Dtype.BF16, Dtype.F32, Dtype.F64, Dtype.U32),
    Quantizer.AFFINE: _CODES,
    Quantizer.AFFINE_ROW: _CODES,
    Quantizer.AFFINE_COLUMN: _CODES,
    Quantizer.ASINH: (Dtype.I8, Dtype.I16),
    Quantizer.SQRT: _CODES,
}
_DTYPES_OF_KIND = {
    Kind.TENSOR: tuple(dtype for dtype in Dtype if dtype is not Dtype.U32),
    Kind.PARTIAL: (Dtype.F64,),
    Kind.HIST: (Dtype.U32,),
    Kind.TOPK: (Dtype.U32,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """`payload` is what the codec leaves: see `cells`."""

    kind: Kind = Kind.TENSOR
    subscription: int = 0
    sequence: int = 0
    captured_unix_us: int = 0
    step: int = 0
    microbatch: int | None = None
    layer: int | None = None
    dtype: Dtype = Dtype.F32
    quantizer: Quantizer = Quantizer.NONE
    codec: Codec = Codec.RAW
    flags: Flag = NO_FLAGS
    missing_shards: int = 0
    dims: tuple[int, ...] = ()
    scale: float = 1.0
    bias: float = 0.0
    low: float = math.nan
    high: float = math.nan
    sections: Mapping[Section, bytes] = field(default_factory=dict)
    payload: bytes | memoryview = b""

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def request(self) -> str:
        return self.sections.get(Section.REQUEST, b"").decode()

    def with_codec(self, codec: Codec) -> Frame:
        """A raw frame's payload in another codec."""
        if codec is Codec.ZLIB:
            return replace(self, codec=codec, payload=zlib.compress(self.payload, 1))
        if codec is Codec.TRIANGLE:
            square = np.frombuffer(self.payload, NUMPY[self.dtype]).reshape(-1, *self.dims[-2:])
            rows, columns = np.tril_indices(self.dims[-1])
            return replace(self, codec=codec, payload=square[:, rows, columns].tobytes())
        return self


class Stamp(NamedTuple):
    """The fields of a frame that say what it is of."""

    subscription: int
    sequence: int
    captured_unix_us: int
    step: int
    microbatch: int | None
    layer: int | None


def pack(frame: Frame, *, checksum: bool = False) -> bytes:
    stamp = Stamp(frame.subscription, frame.sequence, frame.captured_unix_us, frame.step, frame.microbatch, frame.layer)
    return b"".join((*_head(frame, stamp, frame.sections, zlib.crc32(frame.payload) if checksum else 0), frame.payload))


def stamped(frame: Frame, stamp: Stamp, sections: Mapping[Section, bytes]) -> bytes:
    """What comes before the payload in the frame with these fields and, beside its own, these sections. As `pack` of a
    `replace`, which takes a generation's thread several times as long."""
    return b"".join(_head(frame, stamp, {**frame.sections, **sections}, 0))


def _head(frame: Frame, stamp: Stamp, of: Mapping[Section, bytes], checksum: int) -> tuple[bytes, bytes]:
    sections = _packed_sections(of)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        frame.kind,
        stamp.subscription,
        stamp.sequence,
        stamp.captured_unix_us,
        stamp.step,
        NONE if stamp.microbatch is None else stamp.microbatch,
        NONE if stamp.layer is None else stamp.layer,
        frame.dtype,
        frame.quantizer,
        len(frame.dims),
        frame.codec,
        frame.flags,
        frame.missing_shards,
        *frame.dims,
        *(0,) * (MAX_DIMS - len(frame.dims)),
        frame.scale,
        frame.bias,
        frame.low,
        frame.high,
        len(sections),
        checksum,
    )
    return header, sections


def addressed(frame: bytes, subscription: int, sequence: int) -> bytes:
    """The same frame for another subscription: only these two fields differ, the rest is copied."""
    return b"".join((frame[:4], struct.pack("<IQ", subscription, sequence), memoryview(frame)[16:]))


def unpack(data: bytes | memoryview, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
    """The frame; its payload is a view of `data`. Every field is checked, also against the payload's size.

    Raises FrameError.
    """
    view = memoryview(data)
    if not HEADER_BYTES <= len(view) <= max_bytes:
        raise FrameError(f"{len(view)} bytes are no frame; it has from {HEADER_BYTES} to {max_bytes}")
    (magic, version, kind, subscription, sequence, captured, step, microbatch, layer, *rest) = _HEADER.unpack_from(view)
    (dtype, quantizer, ndim, codec, flags, missing, *rest) = rest
    dims, (scale, bias, low, high, section_bytes, checksum) = tuple(rest[:MAX_DIMS]), rest[MAX_DIMS:]
    if magic != MAGIC or version != VERSION:
        raise FrameError(f"magic {magic:#06x}, version {version}; expected {MAGIC:#06x}, {VERSION}")
    if ndim > MAX_DIMS or any(dims[ndim:]):
        raise FrameError(f"{ndim} dims {dims}; at most {MAX_DIMS}, and 0 beyond")
    try:
        named = Kind(kind), Dtype(dtype), Quantizer(quantizer), Codec(codec)
    except ValueError as error:
        raise FrameError(f"kind {kind}, dtype {dtype}, quantiser {quantizer} or codec {codec} is not known") from error
    if section_bytes % 16 or section_bytes > MAX_SECTION_BYTES or HEADER_BYTES + section_bytes > len(view):
        raise FrameError(f"{section_bytes} bytes of sections in a frame of {len(view)}")
    payload = view[HEADER_BYTES + section_bytes :]
    if checksum and zlib.crc32(payload) != checksum:
        raise FrameError("the payload's checksum is another one")
    frame = Frame(
        kind=named[0],
        subscription=subscription,
        sequence=sequence,
        captured_unix_us=captured,
        step=step,
        microbatch=None if microbatch == NONE else microbatch,
        layer=None if layer == NONE else layer,
        dtype=named[1],
        quantizer=named[2],
        codec=named[3],
        flags=Flag(flags),
        missing_shards=missing,
        dims=dims[:ndim],
        scale=scale,
        bias=bias,
        low=low,
        high=high,
        sections=dict(_sections(view[HEADER_BYTES : HEADER_BYTES + section_bytes])),
        payload=payload,
    )
    _check(frame, max(max_bytes, MAX_FRAME_BYTES))
    return frame


def cells(frame: Frame) -> npt.NDArray[np.generic]:
    """The payload as an array of its dtype: of `dims`; of a partial [components, *dims]; of a top-k [2, *dims], where
    the second part is f32 in u32's bits. Masked cells of a triangle are 0: see `triangle_mask`. Raises FrameError.
    """
    payload = frame.payload
    if frame.codec is Codec.ZLIB:
        payload = _inflated(payload, _raw_bytes(frame))
    array = np.frombuffer(payload, NUMPY[frame.dtype])
    if frame.codec is Codec.TRIANGLE:
        rows, columns = np.tril_indices(frame.dims[-1])
        square = np.zeros((math.prod(frame.dims[:-2]), *frame.dims[-2:]), array.dtype)
        square[:, rows, columns] = array.reshape(len(square), -1)
        array = square.reshape(-1)
    if frame.kind in (Kind.PARTIAL, Kind.TOPK):
        return array.reshape(-1 if frame.elements else 0, *frame.dims)
    return array.reshape(frame.dims)


def _raw_bytes(frame: Frame) -> int:
    return frame.elements * ITEM_BYTES[frame.dtype] * (2 if frame.kind is Kind.TOPK else 1)


def _check(frame: Frame, max_elements: int) -> None:
    if math.prod(max(dim, 1) for dim in frame.dims) > max_elements:
        raise FrameError(f"dims {frame.dims}; at most {max_elements} values")
    if frame.dtype not in _DTYPES_OF_KIND[frame.kind] or frame.dtype not in _QUANTIZED[frame.quantizer]:
        raise FrameError(f"{frame.kind.name} of {frame.dtype.name} by {frame.quantizer.name}")
    if not (math.isfinite(frame.scale) and math.isfinite(frame.bias)):
        raise FrameError(f"scale {frame.scale}, bias {frame.bias}; both are finite")
    _check_payload(frame)
    _check_sections(frame)


def _check_payload(frame: Frame) -> None:
    size, raw = len(frame.payload), _raw_bytes(frame)
    if frame.codec is Codec.ZLIB:
        if frame.kind is Kind.PARTIAL or not size:
            raise FrameError(f"a {frame.kind.name} of {size} bytes by zlib")
        return
    if frame.codec is Codec.TRIANGLE:
        square = frame.dims[-2:]
        if frame.kind is not Kind.TENSOR or len(square) != 2 or square[0] != square[1] or not square[0]:
            raise FrameError(f"a triangle of {frame.dims}")
        raw = raw // square[0] * (square[0] + 1) // 2
    if frame.kind is Kind.PARTIAL:
        if raw == 0 or size % raw or not 1 <= size // raw <= MAX_COMPONENTS:
            raise FrameError(f"{size} bytes are no components of {frame.dims}")
    elif size != raw:
        raise FrameError(f"{size} bytes of payload; {frame.dims} of {frame.dtype.name} have {raw}")


def _check_sections(frame: Frame) -> None:
    sections = frame.sections
    scales = {
        Quantizer.AFFINE_ROW: math.prod(frame.dims[:-1]),
        Quantizer.AFFINE_COLUMN: frame.dims[-1] if frame.dims else 1,
    }
    if len(sections.get(Section.SCALES, b"")) != 8 * scales.get(frame.quantizer, 0):
        raise FrameError("the table of scales has another size")
    _check_outliers(sections.get(Section.OUTLIERS, b""), frame.elements)
    if len(sections.get(Section.FIRST_NONFINITE, bytes(8))) != 8:
        raise FrameError("the index of the first non-finite value has another size")
    rows = 4 * math.prod(frame.dims[:-1]) if frame.kind is Kind.TOPK else 0
    if len(sections.get(Section.LOG_SUM_EXP, b"")) != rows:
        raise FrameError("log-sum-exp of another number of rows")
    if len(sections.get(Section.REQUEST, b"")) > 128 or not _is_text(sections.get(Section.REQUEST, b"")):
        raise FrameError("a generation's name has at most 128 bytes of UTF-8")
    try:
        unpack_texts(sections.get(Section.TOKEN_TEXTS, b""))
    except DataError as error:
        raise FrameError(str(error)) from error


def _check_outliers(data: bytes, elements: int) -> None:
    if len(data) % 8 or len(data) > 8 * MAX_OUTLIERS:
        raise FrameError(f"{len(data)} bytes of outliers; at most {MAX_OUTLIERS} pairs")
    if (np.frombuffer(data, "<u4")[::2] >= elements).any():
        raise FrameError("outliers that are none of its values")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _packed_sections(sections: Mapping[Section, bytes]) -> bytes:
    packed = bytearray()
    for kind in sorted(sections):
        packed += _SECTION.pack(kind, 0, len(sections[kind])) + sections[kind]
        packed += bytes(-len(packed) % 8)
    return bytes(packed + bytes(-len(packed) % 16))


def _sections(view: memoryview) -> Iterator[tuple[Section, bytes]]:
    """Sections of kinds that are not known are skipped: a newer sender's."""
    known, before = {int(section) for section in Section}, 0
    while len(view) >= _SECTION.size:
        kind, _, size = _SECTION.unpack_from(view)
        if kind == 0:  # filling
            break
        if size > len(view) - _SECTION.size or kind <= before:
            raise FrameError(f"section {kind} of {size} bytes does not fit, or is not in order")
        if kind in known:
            yield Section(kind), bytes(view[_SECTION.size : _SECTION.size + size])
        before, view = kind, view[_SECTION.size + size + -size % 8 :]


def _inflated(payload: bytes | memoryview, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(payload, size + 1)
    except zlib.error as error:
        raise FrameError(f"the payload can't be inflated: {error}") from error
    if len(data) != size:
        raise FrameError(f"the payload is not of {size} bytes when inflated")
    return data
