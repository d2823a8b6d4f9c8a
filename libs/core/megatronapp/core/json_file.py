"""JSON that somebody else wrote: read within bounds, and refused with one error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, UnavailableError

MAX_BYTES = 64 << 20


def load_json_file(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """A file's value. Raises DataError for what is no JSON, UnavailableError for what can't be read."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise DataError(f"{path} has {size} bytes; {max_bytes >> 20} MiB are the most that are read")
        text = path.read_bytes()
    except OSError as error:
        raise UnavailableError(f"{path} can't be read: {error.strerror}") from error
    return load_json(text, str(path))


def load_json(text: str | bytes, source: str) -> Any:
    """The value of a text; `source` names it in errors. Raises DataError, also for numbers of thousands of digits and
    for lists nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{source} is not readable as JSON: nested too deeply") from error
    except ValueError as error:
        raise DataError(f"{source} is not readable as JSON: {error}") from error
