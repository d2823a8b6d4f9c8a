"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatronapp.core.durable_file import sync
from megatronapp.core.errors import UnavailableError, UsageError


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, which gets its name where the body ends well, and goes where it does not.
    Raises UsageError where `target` is there already, UnavailableError where the disk does not take it."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already: give a folder that is not, or an empty one")
    partial = target.absolute().with_name(f".{target.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
        sync(partial.parent)
    except OSError as error:
        raise UnavailableError(f"{target} can't be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
