"""Tokens that lie in files."""

from __future__ import annotations

from pathlib import Path

from megatronapp.core.errors import ConfigError


def read_token(file: str) -> str:
    """A token file's content, read anew each time since Kubernetes rotates it; "" for no file.

    Raises ConfigError when the file can't be read or is empty.
    """
    if not file:
        return ""
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file} can't be read: {error}") from error
    if not token:
        raise ConfigError(f"the token file {file} is empty; write the token into it")
    return token
