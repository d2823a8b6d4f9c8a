"""Callers at a rank's door, served side by side by one thread: one that is slow, silent or hostile delays nobody.

Each has one deadline for its whole handshake. There is room for a bounded number; for another one the caller that has
said least must go, the oldest of them. Who was sent away may call again, and ranks do.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from megatronapp.rdma import handshake
from megatronapp.rdma.errors import HandshakeError
from megatronapp.rdma.handshake import Accepting, FrameReader, Frames, Proved
from megatronapp.rdma.rendezvous import Listener, tuned

HANDSHAKE_SECONDS = 10.0
MAX_CALLERS = 128
MAX_REASONS = 8
MAX_ACCEPTS = 32
"""At a time, between looks at those who are there."""


class Caller:
    """A connection whose other end has not proved anything yet."""

    def __init__(self, connection: socket.socket, accepting: Accepting) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.frames_read = 0
        self._reader = FrameReader(handshake.MAX_STRANGERS_BYTES)
        self._accepting = accepting
        next(accepting)

    def serve(self) -> Proved | None:
        """Takes what has come, and answers. Raises HandshakeError for a caller that is no rank."""
        while True:
            try:
                data = self.connection.recv(self._reader.wanted)
            except BlockingIOError:
                return None
            if not data:
                raise HandshakeError("a caller hung up")
            message = self._reader.feed(data)
            if message is not None and (proved := self._answer(message)) is not None:
                return proved

    def _answer(self, message: dict[str, Any]) -> Proved | None:
        self.frames_read += 1
        try:
            answer = self._accepting.send(message)
            while answer is not None:
                data = handshake.encode(answer)
                if self.connection.send(data) != len(data):
                    raise HandshakeError("a caller does not read")
                answer = next(self._accepting) if "error" in answer else None  # which raises what is wrong
        except StopIteration as end:
            proved: Proved = end.value
            return proved
        return None


class PeerAcceptor:
    """The callers of one listener, until `close`. `sent_away` holds why the last of them had to go."""

    def __init__(self, listener: Listener, accepting: Callable[[], Accepting]) -> None:
        self.sent_away: deque[str] = deque(maxlen=MAX_REASONS)
        self._accepting = accepting
        self._callers: dict[socket.socket, Caller] = {}  # oldest first
        self._left = time.monotonic()
        self._proved: deque[tuple[socket.socket, Proved]] = deque()
        self._selector = selectors.DefaultSelector()
        for listening in listener.sockets:
            self._selector.register(listening, selectors.EVENT_READ, listening)

    def next(self, deadline: float) -> tuple[Frames, Proved] | None:
        """The next caller that has proved who it is, with the time until `deadline`; None when there is none by it."""
        self._extend_deadlines(time.monotonic() - self._left)
        try:
            return self._next(deadline)
        finally:
            self._left = time.monotonic()

    def _extend_deadlines(self, seconds: float) -> None:
        """Nobody was served meanwhile."""
        for caller in self._callers.values():
            caller.deadline += seconds

    def _next(self, deadline: float) -> tuple[Frames, Proved] | None:
        while not self._proved and (now := time.monotonic()) < deadline:
            self._send_away_late(now)
            until = min([deadline, *(caller.deadline for caller in self._callers.values())])
            for key, _ in self._selector.select(max(until - now, 0)):
                if isinstance(key.data, socket.socket):
                    self._welcome(key.data)
                elif key.data.connection in self._callers:
                    self._serve(key.data)
        if not self._proved:
            return None
        connection, proved = self._proved.popleft()
        return Frames(connection, deadline), proved

    def close(self) -> None:
        """Sends everybody away who is still there."""
        for connection, _ in self._proved:
            connection.close()
        for caller in list(self._callers.values()):
            self._send_away(caller, "")
        self._selector.close()

    def _welcome(self, listening: socket.socket) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                connection = listening.accept()[0]
            except OSError:  # nobody any more, or no descriptor for one more
                if len(self._callers) > MAX_CALLERS // 2:
                    self._make_room()
                return
            if len(self._callers) >= MAX_CALLERS:
                self._make_room()
            with suppress(OSError):
                tuned(connection).setblocking(False)
            caller = Caller(connection, self._accepting())
            self._callers[connection] = caller
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._serve(caller)  # ranks speak at once: who has spoken is not the first to go

    def _make_room(self) -> None:
        said_least = min(self._callers.values(), key=lambda caller: caller.frames_read)
        self._send_away(said_least, "too many call at once")

    def _serve(self, caller: Caller) -> None:
        try:
            proved = caller.serve()
        except (HandshakeError, OSError) as error:
            return self._send_away(caller, str(error))
        if proved is not None:
            self._forget(caller)
            self._proved.append((caller.connection, proved))
        return None

    def _send_away_late(self, now: float) -> None:
        for caller in [caller for caller in self._callers.values() if caller.deadline <= now]:
            self._send_away(caller, "a caller said nothing in time, or too little")

    def _send_away(self, caller: Caller, reason: str) -> None:
        self._forget(caller)
        caller.connection.close()
        self.sent_away.append(reason)

    def _forget(self, caller: Caller) -> None:
        del self._callers[caller.connection]
        self._selector.unregister(caller.connection)
