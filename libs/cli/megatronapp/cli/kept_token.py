"""Tokens that this user's platform keeps in its folder, so that they outlive its restarts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError

OPERATOR = "operator-token"
"""Signs people in."""
PODS = "pod-token"
"""Training pods show it."""


def kept_token(folder: Path, name: str) -> SecretStr:
    """The folder's token of that name, made when there is none. Nobody else can read its file.

    Raises UnavailableError when the file can't be read or made, or holds no text.
    """
    path = folder / name
    try:
        known = read_kept(folder, name)
        if known is None:
            _write(path, secrets.token_urlsafe(32))
        path.chmod(0o600)
        return known or SecretStr(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UnavailableError(f"{path} can't be used: {reason}; remove it, and a new one is created") from error


def read_kept(folder: Path, name: str) -> SecretStr | None:
    """The token, or None where there is none. Raises OSError."""
    path = folder / name
    text = path.read_text().strip() if path.exists() else ""
    return SecretStr(text) if text else None


def _write(path: Path, token: str) -> None:
    """Whole or not at all, and never readable by others."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(token)
    draft.replace(path)
