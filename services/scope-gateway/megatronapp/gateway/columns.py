"""Columns of numbers as bytes, so that nobody makes a million numbers of them on the way to a page.

A document is: `u32` length of the header (little-endian), the header (JSON, spaces at its end), then the columns one
after the other, little-endian, each begun at a multiple of 8 from the document's begin. The header has the document's
own values and `columns`, a list of `{"name", "type", "rows"}` in their order. Types are those of JavaScript's typed
arrays: float64, float32, float16, uint32, uint8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

MEDIA_TYPE = "application/vnd.megatronapp.columns"
ALIGNMENT = 8
TYPES = {"<f8": "float64", "<f4": "float32", "<f2": "float16", "<u4": "uint32", "|u1": "uint8"}


def encode(values: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Columns may differ in length; their dtypes are among TYPES."""
    listed = [{"name": name, "type": TYPES[column.dtype.str], "rows": len(column)} for name, column in columns.items()]
    header = json.dumps({**values, "columns": listed}, separators=(",", ":")).encode()
    header += b" " * (-(4 + len(header)) % ALIGNMENT)
    parts = [len(header).to_bytes(4, "little"), header]
    for column in columns.values():
        data = column.tobytes()
        parts += [data, bytes(-len(data) % ALIGNMENT)]
    return b"".join(parts)
