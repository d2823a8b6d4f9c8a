"""Texts of tokens beside a picture of their ids: u32 id, u16 bytes, UTF-8, one behind the other, each id once."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from megatronapp.core.errors import DataError

MAX_BYTES = 128 << 10
"""Of all texts of a frame; ids beyond go by their numbers."""
MAX_TEXT_BYTES = 64
_ENTRY = struct.Struct("<IH")


def pack_texts(texts: Mapping[int, str]) -> bytes:
    """As many as there is room for, in their order; a long text is cut."""
    packed = bytearray()
    for token, text in texts.items():
        data = _cut(text.encode(errors="replace"))
        if len(packed) + _ENTRY.size + len(data) > MAX_BYTES:
            break
        packed += _ENTRY.pack(token, len(data)) + data
    return bytes(packed)


def unpack_texts(data: bytes) -> dict[int, str]:
    """Raises DataError."""
    texts: dict[int, str] = {}
    at = 0
    while at < len(data) <= MAX_BYTES:
        token, size = _ENTRY.unpack_from(data, at) if at + _ENTRY.size <= len(data) else (0, MAX_TEXT_BYTES + 1)
        at += _ENTRY.size + size
        if size > MAX_TEXT_BYTES or at > len(data) or token in texts:
            raise DataError("texts of tokens that do not fit, or two of one")
        try:
            texts[token] = data[at - size : at].decode()
        except UnicodeDecodeError as error:
            raise DataError("a token's text is no UTF-8") from error
    if at < len(data):
        raise DataError(f"{len(data)} bytes of tokens' texts; at most {MAX_BYTES}")
    return texts


def _cut(data: bytes) -> bytes:
    """Between two characters."""
    return data if len(data) <= MAX_TEXT_BYTES else data[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
