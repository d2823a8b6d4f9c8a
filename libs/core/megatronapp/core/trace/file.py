"""Trace files: TraceMessages, each behind its length as a varint. `<dir>/<job>/attempt-<n>/rank-<r>.pb`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError

from megatronapp.core.errors import DataError
from megatronapp.core.trace import varint
from megatronapp.v1 import trace_pb2

MAX_MESSAGE_BYTES = 64 << 20


def path_for(root: Path, job: str, attempt: int, rank: int) -> Path:
    """Where a rank's file lies below a trace folder. `job` is `<namespace>/<name>`."""
    return root / job / f"attempt-{attempt}" / f"rank-{rank}.pb"


def write(file: IO[bytes], message: trace_pb2.TraceMessage) -> None:
    """Append one message."""
    write_serialized(file, message.SerializeToString())


def write_serialized(file: IO[bytes], message: bytes) -> None:
    """Append one message that is serialized already."""
    file.write(varint.encode(len(message)) + message)


def read(path: Path) -> Iterator[trace_pb2.TraceMessage]:
    """All messages of a file. A torn last message (the writer was killed) ends the iteration quietly;
    anything else that can't be read raises DataError with the offset."""
    data = path.read_bytes()
    position = 0
    while position < len(data):
        start = position
        size, position = _read_varint(data, position)
        if size > MAX_MESSAGE_BYTES:
            raise DataError(f"{path}: a message of {size} bytes at byte {start}; the file is damaged")
        if position + size > len(data):
            return
        yield _parse(path, start, data[position : position + size])
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The varint at position and where it ends. Cut by the end of data it counts as a byte that never came."""
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return (1, position) if position == len(data) else (MAX_MESSAGE_BYTES + 1, position)


def _parse(path: Path, start: int, data: bytes) -> trace_pb2.TraceMessage:
    message = trace_pb2.TraceMessage()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise DataError(f"{path}: the message at byte {start} can't be read; the file is damaged") from error
    return message
