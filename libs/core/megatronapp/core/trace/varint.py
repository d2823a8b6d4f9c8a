"""Protobuf's base-128 varints, for what is put together from serialized parts."""

from __future__ import annotations


def encode(value: int) -> bytes:
    """`value` is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
