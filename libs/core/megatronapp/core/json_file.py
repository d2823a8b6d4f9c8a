"""JSON that somebody else wrote: read within bounds, and refused with one error."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, UnavailableError

MAX_BYTES = 64 << 20


def load_json_file(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """A file's value; of a file `*.gz` what is compressed in it. Raises DataError for what is no JSON, UnavailableError
    for what can't be read."""
    try:
        text = _read_compressed(path, max_bytes) if path.suffix == ".gz" else _read(path, max_bytes)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not readable as gzip: {error}") from error
    except OSError as error:
        raise UnavailableError(f"{path} can't be read: {error.strerror}") from error
    return load_json(text, str(path))


def _read(path: Path, max_bytes: int) -> bytes:
    size = path.stat().st_size
    if size > max_bytes:
        raise DataError(f"{path} has {size} bytes; {max_bytes >> 20} MiB are the most that are read")
    return path.read_bytes()


def _read_compressed(path: Path, max_bytes: int) -> bytes:
    with gzip.open(path) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise DataError(f"{path} unpacks to more than {max_bytes >> 20} MiB, the most that are read")
    return text


def load_json(text: str | bytes, source: str) -> Any:
    """The value of a text; `source` names it in errors. Raises DataError, also for numbers of thousands of digits and
    for lists nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{source} is not readable as JSON: nested too deeply") from error
    except ValueError as error:
        raise DataError(f"{source} is not readable as JSON: {error}") from error
