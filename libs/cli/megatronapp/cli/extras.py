"""A clear word when a command needs an extra that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megatronapp.core.errors import UsageError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a missing third-party module into the pip command that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("megatronapp"):
            raise
        raise UsageError(f"{error.name} is not installed; run: pip install 'megatronapp[{extra}]'") from error
