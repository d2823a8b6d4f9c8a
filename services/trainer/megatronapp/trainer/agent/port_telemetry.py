"""Megatrace's telemetry of the network ports that a rank sends through: its files are read as the rank's process writes
them (core/trace/work_requests.py). Which are the rank's own its open descriptors tell, since rows number ranks within
communicators.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from megatronapp.core.logging import get_logger
from megatronapp.core.trace.limits import MAX_COUNT, MAX_DURATION_NS, MAX_PORTS
from megatronapp.core.trace.work_requests import HEADER, NS, Busy, Send, busy, parse, port_name
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

ENABLE, ROWS = "NCCL_TELEMETRY_ENABLE", "NCCL_TELEMETRY_OBSERVE"
"""Newer versions of Megatrace's NCCL write a row for each send only with the second."""
ENVIRONMENT_BYTES = 1 << 20
LOOK_SECONDS = 5.0
"""A process opens its ports' files when it sends through them for the first time."""
READ_BYTES = 1 << 16
"""Of a file, of what was added since the last time the newest: some 500 sends. A port may end 100,000 a second."""
RECENT_NS = 2 * 10**9
"""That an operation's end is known to the agent two heartbeats late, at most."""
FILES = 2
"""Of a port, which are written in turn."""


def is_enabled(environment: Mapping[str, str], pid: int) -> bool:
    """By the agent's environment, or by the one that the rank's process was started with: a sidecar has its own."""
    return any(value.strip() not in ("", "0") for value in (environment.get(ENABLE, ""), _started_with(pid)))


def _started_with(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            settings = file.read(ENVIRONMENT_BYTES).split(b"\0")
    except OSError:  # it has ended, or is not for the agent to see
        return ""
    name = f"{ENABLE}=".encode()
    return next((each.removeprefix(name).decode(errors="replace") for each in settings if each.startswith(name)), "")


class PortTelemetry:
    """Of one rank's process. For the agent's thread."""

    def __init__(self, pid: int) -> None:
        self._descriptors = Path(f"/proc/{pid}/fd")
        self._files: dict[tuple[int, int], _File | None] = {}
        """By device and number; None: it has no rows of sends."""
        self._busy: dict[str, Busy] = {}
        """By port, since it was told last."""
        self._newest: dict[str, Send] = {}
        self._look_at = 0.0

    def read(self, now_seconds: float) -> None:
        """Take what was written since the last call."""
        if now_seconds >= self._look_at:
            self._look_at = now_seconds + LOOK_SECONDS
            self._discover()
        for file in filter(None, self._files.values()):
            self._take(file.port, file.read())

    def drain(self) -> list[trace_pb2.PortSends]:
        """What was read since the last call, and the newest send of each port; for a step's summary."""
        was_busy, self._busy = self._busy, {}
        return [_message(port, send, was_busy.get(port, Busy())) for port, send in self._newest.items()]

    def standing(self, since_unix_ns: int) -> list[trace_pb2.PortSends]:
        """Of a rank that stands still since then: the newest send of each port that has sent since. What was left
        at an earlier one may be through: small operations leave no rows."""
        since_ns = since_unix_ns - RECENT_NS
        return [_message(port, send, Busy()) for port, send in self._newest.items() if send.ended_ns >= since_ns]

    def close(self) -> None:
        for file in filter(None, self._files.values()):
            file.close()
        self._files.clear()

    def _take(self, port: str, sends: list[Send]) -> None:
        if sends:
            self._busy[port] = self._busy.get(port, Busy()) + busy(sends)
            newest = self._newest.get(port)
            if newest is None or newest.ended_ns <= sends[-1].ended_ns:
                self._newest[port] = sends[-1]

    def _discover(self) -> None:
        """Open what the process writes and is not open yet."""
        try:
            for descriptor in self._descriptors.iterdir():
                self._open(descriptor)
        except PermissionError as error:
            self._look_at = float("inf")
            log.warning("no_port_telemetry", descriptors=str(self._descriptors), reason=error.strerror)
        except OSError:  # it has ended
            self._look_at = float("inf")

    def _open(self, descriptor: Path) -> None:
        try:
            port = port_name(descriptor.readlink().name)
            if port is None or not port.isprintable():
                return
            found = descriptor.stat()
            key = found.st_dev, found.st_ino
            known = key in self._files or len(self._files) >= FILES * MAX_PORTS
            if not known and stat.S_ISREG(found.st_mode) and found.st_size:
                self._files[key] = self._opened(port, descriptor)
        except OSError:  # it was closed meanwhile
            return

    def _opened(self, port: str, path: Path) -> _File | None:
        """Raises OSError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if os.pread(descriptor, len(HEADER), 0) == HEADER.encode():
            return _File(port, descriptor)
        os.close(descriptor)
        if None not in self._files.values():
            log.warning("no_port_telemetry", port=port, reason=f"its file has no rows of sends: set {ROWS}=1")
        return None


class _File:
    def __init__(self, port: str, descriptor: int) -> None:
        self.port = port
        self._descriptor = descriptor
        self._offset = 0
        self._cut = b""
        """A line whose end is not written yet."""
        self._last: list[Send] = []
        """The newest, if nothing was skipped since."""

    def read(self) -> list[Send]:
        """What was added; the first was known before, where nothing was skipped between."""
        size = os.fstat(self._descriptor).st_size
        if size == self._offset:
            return []
        if size < self._offset:  # it is written from its beginning again
            self._offset, self._cut, self._last = 0, b"", []
        skipped = size - self._offset > READ_BYTES
        if skipped:
            self._offset, self._last = size - READ_BYTES, []
        content = os.pread(self._descriptor, size - self._offset, self._offset)
        self._offset += len(content)
        *lines, cut = ((b"" if skipped else self._cut) + content).split(b"\n")
        self._cut = cut[:READ_BYTES]
        added = _understood(lines[1:] if skipped else lines)
        sends, self._last = self._last + added, added[-1:] or self._last
        return sends if added else []

    def close(self) -> None:
        os.close(self._descriptor)


def _understood(lines: list[bytes]) -> list[Send]:
    """What is no row, as the header, is left out."""
    sends = []
    for line in lines:
        try:
            sends.append(parse(line.decode()))
        except ValueError:
            continue
    return sends


def _message(port: str, send: Send, was_busy: Busy) -> trace_pb2.PortSends:
    return trace_pb2.PortSends(
        port=port,
        busy_sends=was_busy.sends,
        busy_ns=min(round(was_busy.seconds / NS), MAX_DURATION_NS),
        busy_bytes=min(round(was_busy.sent_bytes), MAX_COUNT),
        communicator=send.communicator,
        peer=send.peer,
        operation=send.operation,
        outstanding_bytes=send.outstanding_bytes,
        ended_unix_ns=send.ended_ns,
    )
