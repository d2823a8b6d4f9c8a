"""Whether a checkpoint's files hold what was written: sizes, and the checksum of every tensor and object.

torch writes each of them as a zip archive of its own, whose entries carry a CRC-32. They are checked here, as torch
does not when it loads.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from megatronapp.core.errors import DataError
from megatronapp.trainer import checkpoint_folder
from megatronapp.trainer.torch_dist import COMMON, read_metadata


def faults(checkpoint: Path) -> Iterator[str]:
    """One line each, which names the file; nothing of a checkpoint that is whole."""
    reason = checkpoint_folder.why_torn(checkpoint)
    if reason is not None:
        yield f"{checkpoint}: {reason}"
        return
    try:
        checkpoint_folder.read_recipe(checkpoint)
        stored = sorted(read_metadata(checkpoint).storage_data.items(), key=lambda item: str(item[1].relative_path))
    except DataError as error:
        yield str(error)
        return
    for index, place in stored:
        file = checkpoint / place.relative_path
        if not _is_whole(file, place.offset, place.length):
            yield f"{file}: {index.fqn} is damaged: its checksum is wrong"
    if not _is_whole(checkpoint / COMMON, 0, None):
        yield f"{checkpoint / COMMON} is damaged: its checksum is wrong"


def _is_whole(file: Path, offset: int, length: int | None) -> bool:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            content = io.BytesIO(stream.read(length))
        with zipfile.ZipFile(content) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return False
