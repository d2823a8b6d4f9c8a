"""What NCCL itself says of a job that stands still: the report of its RAS subsystem (NCCL 2.24 and later), which the
processes of a node offer on a port of the loopback. Nothing here waits: what was asked for is there later, or never
where nobody listens, another program does, or it takes too long.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping

from megatronapp.core.trace.limits import MAX_RAS
from megatronapp.trainer.agent.stack_text import shown

PORT = 28028
LOOPBACK = ("localhost", "127.0.0.1", "::1")
COLLECT_SECONDS = 3
"""How long RAS waits for processes that do not answer it."""
ANSWER_SECONDS = 8.0
MAX_BYTES = 1 << 18
READ_BYTES = 1 << 16
BEGINS = "NCCL version "
ERRORS, WARNINGS, COMMUNICATORS = "Errors", "Warnings", "Communicators"
ASKING_RANKS = 64
"""Each report is of the whole job: that first ranks of a node ask, and among the first ranks of the job, is enough."""
_ASKED = f"timeout {COLLECT_SECONDS}\nverbose status\n".encode()


class NcclRas:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._to_send = b""
        self._heard = bytearray()
        self._until = 0.0

    @property
    def asking(self) -> bool:
        return self._socket is not None

    def ask(self) -> None:
        if self.asking:
            return
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._to_send, self._heard, self._until = _ASKED, bytearray(), time.monotonic() + ANSWER_SECONDS
        with contextlib.suppress(OSError):
            self._socket.connect_ex(self._address)

    def poll(self) -> str:
        """What it has said, once; empty while it has not, and where it says nothing that is a report."""
        if self._socket is None:
            return ""
        try:
            over = self._go_on(self._socket)
        except OSError:  # nobody listens, or no longer
            self.close()
            return ""
        if over:
            self.close()
            return report(self._heard.decode(errors="replace"))
        if time.monotonic() > self._until or len(self._heard) > MAX_BYTES:
            self.close()
        return ""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _go_on(self, line: socket.socket) -> bool:
        """Send and take what can be; whether the other end has closed, as RAS does behind its report."""
        with contextlib.suppress(BlockingIOError):
            while self._to_send:
                self._to_send = self._to_send[line.send(self._to_send) :]
            while len(self._heard) <= MAX_BYTES:
                if not (more := line.recv(READ_BYTES)):
                    return True
                self._heard += more
        return False


def address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Where a node's RAS listens; None where it does not, or not for this host alone."""
    if environment.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return None
    host, _, port = environment.get("NCCL_RAS_ADDR", f"localhost:{PORT}").strip().rpartition(":")
    host = host.strip("[]")
    if host not in LOOPBACK or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 1 << 16:
        return None
    return ("127.0.0.1" if host == "localhost" else host), int(port)


def asks(rank: int, local_rank: int, gpu_uuid: str) -> bool:
    """Whether this rank's agent does, for its node."""
    return bool(gpu_uuid) and local_rank == 0 and rank < ASKING_RANKS


def report(text: str) -> str:
    """Of what RAS has sent: its errors and warnings, else how its communicators are; empty for what is no report."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not any(line.startswith(BEGINS) for line in lines[:3]):  # before it, that the time-out is taken
        return ""
    sections = _sections(lines)
    wrong = [f"{name}\n{sections[name]}" for name in (ERRORS, WARNINGS) if sections.get(name)]
    found = "\n\n".join(wrong) or sections.get(COMMUNICATORS, "")
    return shown(found, MAX_RAS)


def _sections(lines: list[str]) -> dict[str, str]:
    """Their text by title: a line above one of equals signs."""
    found: dict[str, list[str]] = {}
    title = ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below.startswith("===") and line.strip():
            title = line.split("...")[0].strip()
        elif title and not line.startswith("==="):
            found.setdefault(title, []).append(line.rstrip())
    return {title: "\n".join(text).strip("\n") for title, text in found.items()}
