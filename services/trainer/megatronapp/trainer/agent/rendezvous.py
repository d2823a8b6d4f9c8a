"""Where a rank finds its agent: at the address that the launcher gave, or at one that follows from run and attempt.

Light: the ranks import this.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from megatronapp.core.errors import UnavailableError

SOCKET_VARIABLE = "MEGATRONAPP_AGENT_SOCKET"
PYTHON_VARIABLE = "MEGATRONAPP_AGENT_PYTHON"
MAX_FIRST_LINE = 4096
BACKLOG = 256
MAX_PATH = 100
"""Bytes of a Unix socket's address that every system takes."""


def address_of(run: str, attempt: int) -> Path:
    """Where the ranks of one node, one run and one user meet when no launcher says so. Raises UnavailableError."""
    folder = user_folder()
    name = hashlib.sha256(f"{run}/{attempt}".encode()).hexdigest()[:24]
    return folder / f"{name}.sock"


def listen(path: Path) -> socket.socket | None:
    """A listening socket at `path`; None when another process listens there. Raises UnavailableError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)
        listener.bind(str(unfinished))
        unfinished.chmod(0o600)
        listener.listen(BACKLOG)
        if _link(unfinished, path):  # at its place it listens from the first moment
            return listener
    except OSError as error:
        listener.close()
        raise UnavailableError(f"{path}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    listener.close()
    return None


def _link(socket_file: Path, path: Path) -> bool:
    """Put a socket at its place, unless one that answers is there."""
    while True:
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(socket_file)
            return True
        if answers(path):
            return False
        path.unlink(missing_ok=True)  # of an agent that was killed


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def start_agent(path: Path) -> bool:
    """Start a process that serves the ranks at `path` until this one and all others have ended; whether one was
    started: another rank may have been first. Ranks can connect at once, also while it still loads."""
    listener = listen(path)
    if listener is None:
        return False
    with listener:
        fd = listener.fileno()
        command = [agent_python(), "-m", "megatronapp.trainer.agent"]
        # A group of its own: whoever ends the ranks as a group must leave their last words to it.
        subprocess.Popen(
            [*command, "--parent", str(os.getpid()), "--listen", str(fd), "--path", str(path)],
            env={**os.environ, "PYTHONPATH": "", "MEGATRONAPP_ATTACH": ""} if command[0] != sys.executable else None,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return True


def agent_python() -> str:
    """The interpreter that the agent runs under: the one that is named, else this one where it has what an agent needs,
    else that of an installed `megatronapp` command."""
    if named := os.environ.get(PYTHON_VARIABLE):
        return named
    command = None if find_spec("grpc") else shutil.which("megatronapp")
    return (_interpreter(Path(command)) if command else "") or sys.executable


def _interpreter(script: Path) -> str:
    """As the script's first line says; empty: it says none."""
    with contextlib.suppress(OSError), script.open("rb") as file:
        first = file.readline(MAX_FIRST_LINE).decode(errors="replace").strip()
        if first.startswith("#!/") and " " not in first:
            return first.removeprefix("#!")
    return ""


def private_folder() -> Path:
    """A new folder that only this user can enter, short enough for a socket's address."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108  (mkdtemp makes a private one)
        if len(parent) + 40 < MAX_PATH:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="megatronapp-agent-", dir=parent))
    raise UnavailableError("no temporary folder can be written: set TMPDIR to a short path")


def user_folder() -> Path:
    """This user's own. Raises UnavailableError."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108  (checked below)
        folder = Path(parent) / f"megatronapp-{os.geteuid()}"
        if len(str(folder)) + 40 > MAX_PATH:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077:
                return folder
    raise UnavailableError(f"no folder of {os.geteuid()}'s own for the agent's socket: set TMPDIR to one")
