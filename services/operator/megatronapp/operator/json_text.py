"""JSON of the API server, however deep: an untyped field such as `podTemplate` may be nested a thousand levels.

orjson reads 1,024 levels and writes 254, and Python's own functions recurse. So what lies deeper than any object of
use is cut off where it comes in, and still deep enough for the model to refuse it.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from megatronapp.core.errors import UnavailableError

MAX_LEVELS = 128

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]')


def loads(text: bytes) -> Any:
    """Raises UnavailableError for what is no JSON: whoever sent it is asked again."""
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        return orjson.loads(shallow_text(text))
    except ValueError as error:
        raise UnavailableError(f"the API server's answer is no JSON: {error}") from error


def shallow_text(text: bytes, levels: int = MAX_LEVELS) -> bytes:
    """The same JSON with `null` for objects and lists that lie deeper. Without recursion."""
    kept, depth, start = bytearray(), 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"[", b"{"):
            depth += 1
            if depth == levels + 1:
                kept += text[start : token.start()] + b"null"
        elif mark in (b"]", b"}"):
            if depth == levels + 1:
                start = token.end()
            depth -= 1
    return bytes(kept + text[start:])


def shallow(value: Any, levels: int = MAX_LEVELS) -> Any:
    """The same value with None for objects and lists that lie deeper."""
    if isinstance(value, dict):
        return {key: shallow(child, levels - 1) for key, child in value.items()} if levels > 0 else None
    if isinstance(value, list):
        return [shallow(child, levels - 1) for child in value] if levels > 0 else None
    return value
