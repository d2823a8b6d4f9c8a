"""Two ends of a fresh socket prove to each other that they know the job's secret, and that they are who they say.

Challenge and response with HMAC-SHA256 over both ends' random numbers, ranks and the job's name; what follows is
authenticated with a key that only these two share. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any

from megatronapp.rdma.errors import HandshakeError

_LENGTH = struct.Struct("!I")
MOST_BYTES = 64 << 10


class Session:
    """A socket whose other end is `peer`, proved."""

    def __init__(self, connection: socket.socket, rank: int, peer: int, key: bytes) -> None:
        self.connection = connection
        self.rank = rank
        self.peer = peer
        self._key = key
        self._sent = 0
        self._received = 0

    def send(self, body: dict[str, Any]) -> None:
        text = json.dumps(body)
        send(self.connection, {"body": text, "mac": self._mac(self.rank, self._sent, text)})
        self._sent += 1

    def receive(self) -> dict[str, Any]:
        """Raises HandshakeError for what the peer did not send, or not now."""
        message = receive(self.connection)
        text, number = str(message.get("body")), self._received
        self._received += 1
        if not hmac.compare_digest(str(message.get("mac")), self._mac(self.peer, number, text)):
            raise HandshakeError(f"what came from rank {self.peer} was changed on the way")
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise HandshakeError(f"rank {self.peer} sent something else than an object")
        return fields

    def _mac(self, sender: int, number: int, text: str) -> str:
        return _mac(self._key, b"message", str(sender), str(number), text)


def dial(connection: socket.socket, *, rank: int, peer: int, context: str, secret: bytes) -> Session:
    """As the one who connected. Raises HandshakeError when the other end is not `peer` of this job."""
    nonce = secrets.token_hex(16)
    send(connection, {"rank": rank, "to": peer, "context": context, "nonce": nonce})
    answer = receive(connection)
    if "error" in answer:
        raise HandshakeError(f"rank {peer} refuses: {answer['error']}")
    facts = (context, str(rank), str(peer), nonce, str(answer.get("nonce")))
    if not hmac.compare_digest(str(answer.get("proof")), _mac(secret, b"accept", *facts)):
        raise HandshakeError(f"what listens for rank {peer} does not know this job's secret")
    send(connection, {"proof": _mac(secret, b"dial", *facts)})
    return Session(connection, rank, peer, _key(secret, facts))


def accept(connection: socket.socket, *, rank: int, context: str, secret: bytes) -> Session:
    """As the one who listened. Raises HandshakeError when the caller is no rank of this job."""
    hello = receive(connection)
    if hello.get("to") != rank or hello.get("context") != context or not isinstance(hello.get("rank"), int):
        error = f"this is rank {rank} of {context!r}, not rank {hello.get('to')} of {hello.get('context')!r}"
        send(connection, {"error": error})
        raise HandshakeError(f"a caller was sent away: {error}")
    peer, nonce = int(hello["rank"]), secrets.token_hex(16)
    facts = (context, str(peer), str(rank), str(hello.get("nonce")), nonce)
    send(connection, {"nonce": nonce, "proof": _mac(secret, b"accept", *facts)})
    answer = receive(connection)
    if not hmac.compare_digest(str(answer.get("proof")), _mac(secret, b"dial", *facts)):
        raise HandshakeError(f"a caller that says it is rank {peer} does not know this job's secret")
    return Session(connection, rank, peer, _key(secret, facts))


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Raises HandshakeError when the other end is gone."""
    data = json.dumps(message).encode()
    try:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise HandshakeError(f"the other end hung up: {error}") from error


def receive(connection: socket.socket) -> dict[str, Any]:
    """Raises HandshakeError for anything that is not a small JSON object."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MOST_BYTES:
        raise HandshakeError("the other end does not speak this protocol")
    try:
        message = json.loads(_exactly(connection, length))
    except ValueError as error:
        raise HandshakeError("the other end does not speak this protocol") from error
    if not isinstance(message, dict):
        raise HandshakeError("the other end does not speak this protocol")
    return message


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        try:
            piece = connection.recv(length - len(data))
        except TimeoutError as error:
            raise HandshakeError("the other end said nothing in time") from error
        except OSError as error:
            raise HandshakeError(f"the other end hung up: {error}") from error
        if not piece:
            raise HandshakeError("the other end hung up")
        data += piece
    return data


def _mac(key: bytes, purpose: bytes, *facts: str) -> str:
    message = json.dumps([purpose.decode(), *facts]).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _key(secret: bytes, facts: tuple[str, ...]) -> bytes:
    return bytes.fromhex(_mac(secret, b"key", *facts))
