"""Two ends of a fresh socket prove to each other that they know the job's secret, and that they are who they say.

Challenge and response with HMAC-SHA256 over both ends' random numbers, ranks and the job's name; what follows is
authenticated with a key that only these two share. Nothing is encrypted.

Whoever reaches the port may send anything, at any pace: what comes is at most a small JSON object of known fields,
anything else is a HandshakeError, and a whole handshake has one deadline. The listener's side reads and writes nothing
itself, so that many callers can be served side by side (peer_acceptor.py).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from megatronapp.rdma.errors import HandshakeError

_LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 10
MAX_STRANGERS_BYTES = 4 << 10
"""Of a frame from somebody who has proved nothing."""
MAX_NONCE = 64
SHOWN = 60
"""Characters of a stranger's text in an error."""


class HungUpError(HandshakeError):
    """The connection ended: it may be tried again."""


class FrameReader:
    """Length and JSON object, byte by byte if need be. Never wants more than the frame: nothing is read beyond it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._length = -1

    @property
    def wanted(self) -> int:
        """Bytes until the frame, or its length, is whole."""
        return (_LENGTH.size if self._length < 0 else self._length) - len(self._data)

    def feed(self, data: bytes) -> dict[str, Any] | None:
        """The object once it is whole. Raises HandshakeError for anything that is not a small JSON object."""
        self._data += data
        if self.wanted > 0:
            return None
        if self._length < 0:
            (self._length,) = _LENGTH.unpack(self._data)
            self._data.clear()
            if not 0 < self._length <= self._max_bytes:
                raise _other_protocol()
            return None
        frame, self._length = bytes(self._data), -1
        self._data.clear()
        return _decode(frame)


class Frames:
    """Objects over a socket until one deadline, on the monotonic clock, for all of them together."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline

    def send(self, message: dict[str, Any]) -> None:
        """Raises HungUpError when the other end is gone, HandshakeError after the deadline."""
        try:
            self.arm()
            self.connection.sendall(encode(message))
        except TimeoutError as error:
            raise _too_late() from error
        except OSError as error:
            raise HungUpError(f"the other end hung up: {error}") from error

    def receive(self, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
        """Raises HandshakeError for anything that is not a small JSON object, and after the deadline."""
        reader = FrameReader(max_bytes)
        while True:
            try:
                self.arm()
                data = self.connection.recv(reader.wanted)
            except TimeoutError as error:
                raise _too_late() from error
            except OSError as error:
                raise HungUpError(f"the other end hung up: {error}") from error
            if not data:
                raise HungUpError("the other end hung up")
            if (message := reader.feed(data)) is not None:
                return message

    def arm(self) -> None:
        """The socket's next call ends by the deadline. Raises HandshakeError after it."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _too_late()
        self.connection.settimeout(left)


@dataclass(frozen=True)
class Proved:
    """Who the other end is, and the key that only these two share."""

    peer: int
    key: bytes


class Session:
    """Frames whose other end is `peer`, proved: what comes is authenticated, and in order."""

    def __init__(self, frames: Frames, rank: int, proved: Proved) -> None:
        self.frames = frames
        self.connection = frames.connection
        self.rank = rank
        self.peer = proved.peer
        self._key = proved.key
        self._sent = 0
        self._received = 0

    def send(self, body: dict[str, Any]) -> None:
        text = json.dumps(body)
        self.frames.send({"body": text, "mac": self._mac(self.rank, self._sent, text)})
        self._sent += 1

    def receive(self) -> dict[str, Any]:
        """Raises HandshakeError for what the peer did not send, or not now."""
        message = self.frames.receive()
        text, number = message.get("body"), self._received
        self._received += 1
        if not isinstance(text, str) or not _matches(message.get("mac"), self._mac(self.peer, number, text)):
            raise HandshakeError(f"what came from rank {self.peer} was changed on the way")
        return _decode(text)

    def _mac(self, sender: int, number: int, text: str) -> str:
        return _mac(self._key, b"message", str(sender), str(number), text)


def dial(frames: Frames, *, rank: int, peer: int, context: str, secret: bytes) -> Session:
    """As the one who connected. Raises HandshakeError when the other end is not `peer` of this job."""
    nonce = secrets.token_hex(16)
    frames.send({"rank": rank, "to": peer, "context": context, "nonce": nonce})
    answer = frames.receive(MAX_STRANGERS_BYTES)
    if "error" in answer:
        raise HandshakeError(f"rank {peer} refuses: {_shown(answer['error'])}")
    facts = (context, str(rank), str(peer), nonce, _nonce(answer))
    if not _matches(answer.get("proof"), _mac(secret, b"accept", *facts)):
        raise HandshakeError(f"what listens for rank {peer} does not know this job's secret")
    frames.send({"proof": _mac(secret, b"dial", *facts)})
    return Session(frames, rank, Proved(peer, _key(secret, facts)))


Accepting = Generator[dict[str, Any] | None, dict[str, Any], Proved]


def accepting(*, rank: int, context: str, secret: bytes) -> Accepting:
    """As the one who listened: is sent what the caller says, yields what to answer, and returns who the caller is.

    Raises HandshakeError when the caller is no rank of this job; what is yielded before that explains it to the caller.
    """
    hello = yield None
    peer = hello.get("rank")
    if hello.get("to") != rank or hello.get("context") != context or type(peer) is not int or peer < 0:
        to, job = _shown(hello.get("to")), _shown(hello.get("context"))
        error = f"this is rank {rank} of {context!r}, not rank {to} of {job!r}"
        yield {"error": error}
        raise HandshakeError(f"a caller was sent away: {error}")
    nonce = secrets.token_hex(16)
    facts = (context, str(peer), str(rank), _nonce(hello), nonce)
    answer = yield {"nonce": nonce, "proof": _mac(secret, b"accept", *facts)}
    if not _matches(answer.get("proof"), _mac(secret, b"dial", *facts)):
        raise HandshakeError(f"a caller that says it is rank {peer} does not know this job's secret")
    return Proved(peer, _key(secret, facts))


def encode(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


def _decode(text: bytes | str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _other_protocol() from error
    if not isinstance(message, dict):
        raise _other_protocol()
    return message


def _nonce(message: dict[str, Any]) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or len(nonce) > MAX_NONCE:
        raise _other_protocol()
    return nonce


def _matches(claimed: object, proof: str) -> bool:
    return isinstance(claimed, str) and claimed.isascii() and hmac.compare_digest(claimed, proof)


def _shown(text: object) -> str:
    shown = text if isinstance(text, str) and text.isprintable() else repr(text)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"


def _other_protocol() -> HandshakeError:
    return HandshakeError("the other end does not speak this protocol")


def _too_late() -> HandshakeError:
    return HandshakeError("the other end said nothing in time, or too little")


def _mac(key: bytes, purpose: bytes, *facts: str) -> str:
    message = json.dumps([purpose.decode(), *facts]).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _key(secret: bytes, facts: tuple[str, ...]) -> bytes:
    return bytes.fromhex(_mac(secret, b"key", *facts))
