"""A large TraceBatch without copying its columns: they stay where they lie in the bytes that came.

Protobuf would copy all of a message when it parses it, and each column again when that is read: a fifth of what taking
in detail costs. Only a batch as every sender writes it is skimmed, and whatever is out of the ordinary is left to
protobuf, which refuses what is no message.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from megatronapp.core.trace.columns import SPAN_DTYPES
from megatronapp.v1 import trace_pb2

LARGE_BYTES = 1 << 14
"""Of less the copies cost less than the skimming."""
LEAST_COLUMN_BYTES = 1 << 10
MAX_FIELDS = 4096
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SEQ = trace_pb2.TraceMessage.DESCRIPTOR.fields_by_name["seq"].number
_BATCH = trace_pb2.TraceMessage.DESCRIPTOR.fields_by_name["batch"].number
_COLUMNS = {trace_pb2.TraceBatch.DESCRIPTOR.fields_by_name[name].number: name for name in SPAN_DTYPES}

Skimmed = tuple[trace_pb2.TraceMessage, Mapping[str, memoryview]]


def skim(data: bytes) -> Skimmed | None:
    """The message without its large columns, and these by name. None: protobuf must read it."""
    if len(data) < LARGE_BYTES:
        return None
    try:
        outer = _fields(data, 0, len(data))
        number, kind, first, begin, end = outer[-1]
        if number != _BATCH or kind != _LENGTH or any(other[0] != _SEQ for other in outer[:-1]):
            return None
        columns, rest = _split(data, begin, end)
        message = trace_pb2.TraceMessage.FromString(data[:first])
        message.batch.MergeFromString(rest)
    except (_UnusualError, DecodeError):
        return None
    return message, columns


class _UnusualError(Exception):
    """No message, or one that no sender of ours writes."""


def _split(data: bytes, begin: int, end: int) -> tuple[dict[str, memoryview], bytes]:
    """The large columns, of which the last of a name counts, and all other fields."""
    view, columns, rest, kept_from = memoryview(data), dict[str, memoryview](), list[bytes](), begin
    for number, kind, first, value, behind in _fields(data, begin, end):
        name = _COLUMNS.get(number)
        if name is None:
            continue
        if kind != _LENGTH or name in columns:
            raise _UnusualError
        if behind - value >= LEAST_COLUMN_BYTES:
            columns[name] = view[value:behind]
            rest.append(data[kept_from:first])
            kept_from = behind
    rest.append(data[kept_from:end])
    return columns, b"".join(rest)


def _fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int, int, int]]:
    """Each field's number, wire type, and where it, its value and the next one begin."""
    found: list[tuple[int, int, int, int, int]] = []
    while at < end:
        tag, value = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            size, value = _varint(data, value, end)
            behind = value + size
        elif kind == _VARINT:
            behind = _varint(data, value, end)[1]
        elif kind in (_FIXED64, _FIXED32):
            behind = value + (8 if kind == _FIXED64 else 4)
        else:
            raise _UnusualError
        if number == 0 or behind > end or len(found) == MAX_FIELDS:
            raise _UnusualError
        found.append((number, kind, at, value, behind))
        at = behind
    return found


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Its value, and where the next byte is. In as few bytes as it needs, ten at most."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            if byte == 0 and shift:
                break
            return value, at
        shift += 7
    raise _UnusualError
