"""The dumps of PyTorch's flight recorder: pickles, of which nothing but plain values is taken, in bounded memory."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from megatronapp.core.bounded_memory import bounded_memory
from megatronapp.core.errors import DataError

MAX_DUMP_BYTES = 256 << 20
SPARE_BYTES, GROWTH = 256 << 20, 64
"""What reading a dump may take: a number of two bytes becomes an object of 32."""
MAX_REASON = 300
_KEYS = {"entries", "pg_config", "version"}


def incomplete(entry: dict[str, Any]) -> bool:
    return entry["state"] != "completed" and not entry.get("retired", False)


def operation(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).removeprefix("nccl:")


class _Refusing(pickle.Unpickler):
    """Dumps hold builtin containers, numbers and texts only; anything else could run code."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module_name}.{global_name}")


def load(path: Path) -> dict[str, Any]:
    """A dump, of which nothing but its parts is checked. Raises DataError, and OSError where there is no file."""
    if path.stat().st_size > MAX_DUMP_BYTES:
        raise DataError(f"{path}: larger than {MAX_DUMP_BYTES >> 20} MiB; not a flight-recorder dump")
    try:
        data = path.read_bytes()
        # Four bytes of a pickle make a table of as many entries as they say: gigabytes, which take a minute to clear.
        with bounded_memory(SPARE_BYTES + GROWTH * len(data)):
            dump = _Refusing(io.BytesIO(data)).load()
    except Exception as error:  # a broken pickle may raise anything
        reason = " ".join(str(error).split())[:MAX_REASON] or type(error).__name__
        raise DataError(f"{path}: not readable as a flight-recorder dump: {reason}") from error
    if not isinstance(dump, dict) or not dump.keys() >= _KEYS:
        raise DataError(f"{path}: not a flight-recorder dump")
    return dump
