"""The rank's end of the socket to its agent: small, rare, and never waited for.

A rank without an agent trains on. What is said goes out at once where the socket takes it, else at the next step's
border; a lost connection is made anew there every few seconds, and begins with a whole hello. The first one is tried at
every border of a run's beginning: the node's first rank may start the agent a moment after another looks for it, and
who comes to a stand before the next try would never be heard.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Communicator, Evaluation
from megatronapp.trainer.agent.rendezvous import SOCKET_VARIABLE, address_of, start_agent
from megatronapp.trainer.plugins.scan.stacks import allow_tracer

log = get_logger(__name__)

AGAIN_SECONDS = 3.0
BEGINNING_SECONDS = 60.0
"""The ranks of a node begin within so long."""
START_AGAIN_SECONDS = 10.0
LENGTH = struct.Struct("<I")
READ_BYTES = 64 << 10
MAX_HEARD_BYTES = 1 << 20
"""Of one frame of the agent's."""
MAX_HEARD = 256
"""Frames that nobody has asked for yet."""
MAX_WAITING = 32 << 20
"""Bytes; a connection that takes no more than that is given up."""


class AgentPlace(NamedTuple):
    path: Path | None
    """Where the agent listens; None: there can't be one."""
    own: bool
    """This rank starts it, and another one when that is gone: nobody else does."""
    started: bool = False
    """By this rank, now. What already listened there may be the agent of ranks that are just ending."""


def find_agent(run: str, attempt: int, *, first_of_node: bool) -> AgentPlace:
    """The launcher says where its agent is; without one the first rank of the node starts one."""
    if given := os.environ.get(SOCKET_VARIABLE):
        return AgentPlace(Path(given), own=False)
    try:
        path = address_of(run, attempt)
    except UnavailableError as error:
        log.warning("no_agent", reason=str(error))
        return AgentPlace(None, own=False)
    return AgentPlace(path, own=first_of_node, started=first_of_node and _start(path))


def _pid_of(link: socket.socket) -> int:
    """Of the process at the other end."""
    pid: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _start(path: Path) -> bool:
    """Whether there is a new agent at `path` now."""
    try:
        return start_agent(path)
    except (UnavailableError, OSError) as error:
        log.warning("no_agent", reason=str(error))
        return False


class AgentLink:
    def __init__(
        self, place: AgentPlace, segment: int, hello: Callable[[], dict[str, Any]], operations: int = -1
    ) -> None:
        """`segment`: the descriptor that the agent shall read, and `operations` that of NCCL's, -1: none; `hello` makes
        the first frame of each connection."""
        self._path, self._own, started = place
        self._began_at = time.monotonic()
        self._started_at = self._began_at if started else -START_AGAIN_SECONDS
        self._met = False
        self._segments = [segment, operations] if operations >= 0 else [segment]
        self._hello = hello
        self._socket: socket.socket | None = None
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._checked_at = -AGAIN_SECONDS
        self._warned = False
        self._unread = bytearray()
        self._inbox: list[tuple[str, Any]] = []

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def border(self, *, last: bool = False) -> None:
        """Between two steps: send what waits; when it is time see whether the agent is there, or try to connect; at the
        last one at once."""
        now = time.monotonic()
        sought = not self._met and now - self._began_at < BEGINNING_SECONDS
        if last or sought or now - self._checked_at >= AGAIN_SECONDS:
            self._checked_at = now
            self._check()
            if self._socket is None:
                self._connect()
        self._send()

    def say(self, key: str, value: Any) -> None:
        self._put({key: value})

    def received(self) -> list[tuple[str, Any]]:
        """What the agent has said."""
        self._check()
        inbox, self._inbox = self._inbox, []
        return inbox

    def communicators(self, new: list[Communicator]) -> None:
        self._put({"communicators": [asdict(each) for each in new]})

    def evaluation(self, evaluation: Evaluation) -> None:
        self._put({"evaluation": asdict(evaluation)})

    def close(self, timeout_seconds: float) -> bool:
        """Say goodbye, and wait for the agent's: it has read everything then. False: it was not heard in time."""
        self._put({"closing": True})
        if self._socket is None:
            return False
        deadline = time.monotonic() + timeout_seconds
        with self._socket as link:
            try:
                link.settimeout(timeout_seconds)
                while self._waiting:
                    link.sendall(self._waiting.popleft())
                link.shutdown(socket.SHUT_WR)
                while (left := deadline - time.monotonic()) > 0:
                    link.settimeout(left)
                    if not link.recv(READ_BYTES):
                        return True
            except OSError:
                pass
        return False

    def _connect(self) -> None:
        if self._path is None:
            return
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            link.connect(str(self._path))
            socket.send_fds(link, [b"\0"], self._segments)
        except OSError as error:
            link.close()
            if self._replace_agent():
                self._connect()
                return
            if not self._warned and time.monotonic() - self._began_at >= AGAIN_SECONDS:
                self._warned = True
                log.warning("no_agent", path=str(self._path), reason=error.strerror, again_seconds=AGAIN_SECONDS)
            return
        self._socket, self._met, self._warned = link, True, False
        allow_tracer(_pid_of(link))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._put({"hello": self._hello()})

    def _replace_agent(self) -> bool:
        """Start an agent of this rank's own where its last one is gone; True: it takes connections. One that dies again
        and again is not started in a loop."""
        if not self._own or self._path is None or time.monotonic() - self._started_at < START_AGAIN_SECONDS:
            return False
        self._started_at = time.monotonic()
        return _start(self._path)

    def _check(self) -> None:
        """Read what the agent has said, or its end."""
        while self._socket is not None:
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._disconnect(error.strerror or str(error))
                return
            if not data:
                self._disconnect("it has ended")
                return
            self._unread += data
            self._take_frames()

    def _take_frames(self) -> None:
        """Of the same form as those that the rank sends (docs/agent.md)."""
        while len(self._unread) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._unread)
            if size > MAX_HEARD_BYTES:
                self._disconnect(f"it sent a frame of {size} bytes")
                return
            if len(self._unread) < LENGTH.size + size:
                return
            frame = bytes(self._unread[LENGTH.size : LENGTH.size + size])
            del self._unread[: LENGTH.size + size]
            try:
                ((key, value),) = json.loads(frame).items()
            except (ValueError, AttributeError, RecursionError):
                self._disconnect("it sent what is no frame")
                return
            if len(self._inbox) < MAX_HEARD:
                self._inbox.append((key, value))

    def _put(self, document: dict[str, Any]) -> None:
        """What is said to nobody is part of the next hello, or lost."""
        if self._socket is None:
            return
        frame = json.dumps(document).encode()
        self._waiting_bytes += LENGTH.size + len(frame)
        self._waiting.append(memoryview(LENGTH.pack(len(frame)) + frame))
        self._send()
        if self._waiting_bytes > MAX_WAITING:
            self._disconnect("it takes nothing")

    def _send(self) -> None:
        while self._waiting and self._socket is not None:
            frame = self._waiting[0]
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                return
            except OSError as error:
                self._disconnect(error.strerror or str(error))
                return
            self._waiting_bytes -= sent
            if sent == len(frame):
                self._waiting.popleft()
            else:
                self._waiting[0] = frame[sent:]

    def _disconnect(self, reason: str) -> None:
        log.warning("agent_lost", path=str(self._path), reason=reason)
        link, self._socket = self._socket, None
        self._unread.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        if link is not None:
            with contextlib.suppress(OSError):
                link.close()
