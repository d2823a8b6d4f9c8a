"""The platform that `up` runs on this machine, as other commands of the same user find it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "platform.json"
ANSWER_SECONDS = 1.0


@dataclass(frozen=True)
class LocalPlatform:
    collector_address: str
    token_file: str
    """Holds the token that training pods show."""


@contextmanager
def announced(folder: Path, platform: LocalPlatform) -> Iterator[None]:
    """While the body runs, `find` in the same folder gives the platform. The last one announced is the one found."""
    file, draft = folder / FILE, folder / f"{FILE}.{os.getpid()}"
    content = json.dumps(asdict(platform))
    draft.write_text(content)
    draft.replace(file)
    try:
        yield
    finally:
        if file.exists() and file.read_text() == content:
            file.unlink()


def find(folder: Path) -> LocalPlatform | None:
    """The platform announced in the folder, if its collector answers; a killed one leaves its file behind."""
    try:
        found = LocalPlatform(**json.loads((folder / FILE).read_text()))
        host, _, port = found.collector_address.rpartition(":")
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError, TypeError):
        return None
    return found
