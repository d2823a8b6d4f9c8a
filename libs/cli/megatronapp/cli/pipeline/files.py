"""Files that `simulate` and `plan` are asked to write."""

from __future__ import annotations

from pathlib import Path

from megatronapp.core.errors import UsageError


def write_file(path: Path, text: str) -> None:
    """Raises UsageError where it can't be written."""
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from error
