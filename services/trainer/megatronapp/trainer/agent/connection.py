"""A rank's connection to its agent: the segment's descriptor once, then frames of JSON. Never blocks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from megatronapp.core.errors import DataError

MAX_FRAME = 32 << 20
MAX_UNSENT = 4 << 20
READ_BYTES = 1 << 20
"""At once, so that a rank that talks without end takes no time from the others."""
LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_MAX_DESCRIPTORS = 8
_SEGMENTS = (1, 2)


class Connection:
    def __init__(self, peer: socket.socket) -> None:
        """Raises DataError for a process of another user."""
        self._socket = peer
        peer.setblocking(False)
        self.pid, uid, _ = _CREDENTIALS.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            raise DataError(f"process {self.pid} is user {uid}'s; an agent serves its own user alone")
        self._buffer = bytearray()
        self._unsent = bytearray()
        self._segment: int | None = None
        self._operations: int | None = None
        self._has_segment = False
        self.ended = False
        """The rank has said all, or is gone."""
        self.idle = False
        """There was nothing to read the last time."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Iterator[tuple[str, Any]]:
        """The frames that have come in whole. Raises DataError for what is no frame."""
        self.idle = False
        if not self._has_segment and not self._take_segment():
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            self.idle = True
            return
        except OSError:  # the rank has died with something unread
            data = b""
        self.ended = not data
        self._buffer += data
        while (frame := self._frame()) is not None:
            yield _parse(frame)

    def say(self, key: str, value: Any) -> None:
        """A frame to the rank, of the same form. One that reads nothing is told no more than MAX_UNSENT bytes."""
        frame = json.dumps({key: value}).encode()
        if len(self._unsent) + len(frame) <= MAX_UNSENT:
            self._unsent += LENGTH.pack(len(frame)) + frame
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        with contextlib.suppress(OSError):  # it takes nothing now, or the rank is gone
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def take_segment(self) -> int | None:
        """The segment's descriptor, for the caller to close; None before it has come."""
        fd, self._segment = self._segment, None
        return fd

    def take_operations(self) -> int | None:
        """The descriptor of the segment with NCCL's operations, likewise; None where the rank has none."""
        fd, self._operations = self._operations, None
        return fd

    def close(self) -> None:
        for fd in (self.take_segment(), self.take_operations()):
            if fd is not None:
                os.close(fd)
        self._socket.close()

    def _take_segment(self) -> bool:
        """The first byte, which carries the descriptor; whether it has come."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1, _MAX_DESCRIPTORS)
        except BlockingIOError:
            self.idle = True
            return False
        except OSError:
            data, descriptors = b"", []
        if len(descriptors) in _SEGMENTS:
            self._segment, self._has_segment = descriptors[0], True
            self._operations = descriptors[1] if len(descriptors) > 1 else None
            return True
        for fd in descriptors:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.ended = not data
        if data:
            raise DataError(
                f"a rank sent {len(descriptors)} descriptors; its first byte carries those of one or two segments"
            )
        return False

    def _frame(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME:
            raise DataError(f"a frame of {length} bytes; at most {MAX_FRAME} are accepted")
        if len(self._buffer) < LENGTH.size + length:
            return None
        frame = bytes(self._buffer[LENGTH.size : LENGTH.size + length])
        del self._buffer[: LENGTH.size + length]
        return frame


def _parse(frame: bytes) -> tuple[str, Any]:
    try:
        document = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise DataError(f"a frame that is no JSON: {error}") from error
    if not isinstance(document, dict) or len(document) != 1:
        raise DataError("a frame must be an object with one key")
    ((key, value),) = document.items()
    return key, value
