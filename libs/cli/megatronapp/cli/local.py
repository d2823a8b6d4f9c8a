"""The platform that runs in a folder of this machine: one at a time, and found by other commands of the same user."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from megatronapp.core.errors import UnavailableError, UsageError

FILE = "platform.json"
LOCK = "platform.lock"
ANSWER_SECONDS = 1.0


@dataclass(frozen=True)
class LocalPlatform:
    collector_address: str
    token_file: str
    """Holds the token that training pods show."""
    page: str = ""
    """The page's address, without a token; "": none."""
    gateway_address: str = ""
    """host:port for MegaScope's ranks; "": none."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """While the body runs, no other platform starts in the folder. A killed one lets go.

    Raises UsageError when one runs there, UnavailableError when the folder can't be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise UnavailableError(f"{folder} can't be used: {error.strerror}; choose another with --folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(_already_runs(folder)) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _already_runs(folder: Path) -> str:
    process, running = (folder / LOCK).read_text(), find(folder)
    where = f", its page is {running.page}" if running and running.page else ""
    return (
        f"a platform runs in {folder} already (process {process}{where}); use that one, stop it, "
        "or give this one a folder of its own by --folder"
    )


@contextmanager
def announced(folder: Path, platform: LocalPlatform) -> Iterator[None]:
    """While the body runs, `find` in the same folder gives the platform."""
    file, draft = folder / FILE, folder / f"{FILE}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(platform)))
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find(folder: Path) -> LocalPlatform | None:
    """The platform announced in the folder, if its collector answers; a killed one leaves its file behind."""
    try:
        found = LocalPlatform(**json.loads((folder / FILE).read_text()))
        host, _, port = found.collector_address.rpartition(":")
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # not there, or not what a platform writes
    return found
