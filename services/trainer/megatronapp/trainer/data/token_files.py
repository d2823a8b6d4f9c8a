"""What tokenizers of all kinds say of the files that they are read from."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatronapp.core.errors import ConfigError

HALF = "the text has half a character in it (a surrogate without its other one)"
NO_TEMPLATE = "this tokenizer has no chat template: ask without chat"


def identity(kind: str, *options: object) -> OrderedDict[str, Any]:
    return OrderedDict([("class", kind), ("options", [str(option) for option in options])])


def sha256_of(contents: Sequence[bytes]) -> str:
    """Of the files' contents in this order, each one's length before it."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()


def line_of(error: Exception) -> str:
    """What a library says may repeat a file's words, and its line breaks."""
    return " ".join(str(error).split())[:300]


def must_exist(path: Path, flag: str) -> None:
    if not path.is_file():
        raise ConfigError(f"{flag} {path}: there is no such file")
