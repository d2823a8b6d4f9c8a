"""Files are hostile: whatever in them makes no sense is told as one error, wherever it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatronapp.core.errors import DataError

MAX_REASON = 300
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What numbers without bounds, texts for numbers and values that are missing lead to. pyarrow's errors are some of
these."""


@contextmanager
def understood(path: Path, what: str = "can't be understood") -> Iterator[None]:
    """Raises DataError for what the body fails with because of the file."""
    try:
        yield
    except NONSENSE as error:
        raise DataError(f"{path} {what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """What is wrong, short enough to be read."""
    return (" ".join(str(error).split()) or type(error).__name__)[:MAX_REASON]
