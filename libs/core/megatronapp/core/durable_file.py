"""Files that a reader finds whole, with the old content or the new, also after a power loss."""

from __future__ import annotations

import os
from pathlib import Path

UNFINISHED = ".part"
"""Suffix of what was not written to its end; a writer that starts again may remove it."""


def replace_file(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f"{path.name}{UNFINISHED}")
    unfinished.write_bytes(data)
    publish_file(unfinished, path)


def publish_file(unfinished: Path, path: Path) -> None:
    """What was written beside it takes the place of `path`, on the same file system."""
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Of a file its content, of a folder its entries reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
