"""Who may join, and what may follow."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import HandshakeError, handshake
from megatronapp.rdma.handshake import FrameReader, Frames, Session
from megatronapp.rdma.lanes import Capabilities
from tests.support.engines import in_parallel

OFFER = Capabilities(
    rank=0, protocol=(3,), host="h", pid_namespace="p", lanes=("tcp",), require=(), checksum=False
).to_json()


def accept(frames: Frames, *, rank: int, context: str, secret: bytes) -> Session:
    """The listener's side over a socket of its own."""
    accepting = handshake.accepting(rank=rank, context=context, secret=secret)
    next(accepting)
    try:
        while True:
            if (answer := accepting.send(frames.receive(handshake.MAX_STRANGERS_BYTES))) is not None:
                frames.send(answer)
            if answer is not None and "error" in answer:
                next(accepting)
    except StopIteration as end:
        return Session(frames, rank, end.value)


def connect_peers(
    *, secrets: tuple[bytes, bytes] = (b"s", b"s"), contexts: tuple[str, str] = ("j/1", "j/1"), to: int = 0
) -> Any:
    """Rank 0 listens, rank 1 calls; sessions or errors."""
    ends = [Frames(end, time.monotonic() + 0.5) for end in socket.socketpair()]

    def attempt(action: Any) -> Any:
        try:
            return action()
        except HandshakeError as error:
            return error

    return in_parallel(
        [
            lambda: attempt(lambda: accept(ends[0], rank=0, context=contexts[0], secret=secrets[0])),
            lambda: attempt(lambda: handshake.dial(ends[1], rank=1, peer=to, context=contexts[1], secret=secrets[1])),
        ]
    )


def test_both_know_each_other_afterwards() -> None:
    listener, caller = connect_peers()

    caller.send({"a": 1})
    listener.send({"b": 2})

    assert (listener.peer, caller.peer) == (1, 0)
    assert (listener.receive(), caller.receive()) == ({"a": 1}, {"b": 2})


def test_caller_finds_out_that_the_listener_lacks_the_secret() -> None:
    _, caller = connect_peers(secrets=(b"other", b"s"))

    assert "does not know this job's secret" in str(caller)


@pytest.mark.parametrize(("contexts", "to"), [(("j/1", "j/2"), 0), (("j/1", "j/1"), 3)])
def test_wrong_job_or_rank_is_told(contexts: tuple[str, str], to: int) -> None:
    listener, caller = connect_peers(contexts=contexts, to=to)

    assert "was sent away" in str(listener)
    assert f"rank {to} refuses: this is rank 0 of 'j/1'" in str(caller)


def test_message_that_was_changed_is_refused() -> None:
    listener, caller = connect_peers()
    caller.frames.send({"body": json.dumps({"ucx_address": "evil"}), "mac": "0" * 64})

    with pytest.raises(HandshakeError, match="was changed on the way"):
        listener.receive()


def test_message_cannot_be_sent_back_or_twice() -> None:
    listener, caller = connect_peers()
    caller.send({"a": 1})
    message = listener.frames.receive()
    listener.frames.send(message)

    with pytest.raises(HandshakeError, match="was changed on the way"):
        caller.receive()


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", struct.pack("!I", 3) + b"abc", struct.pack("!I", 2) + b"[]", b""]
)
def test_other_protocols_are_refused(data: bytes) -> None:
    here, there = socket.socketpair()
    there.sendall(data)
    there.close()

    with pytest.raises(HandshakeError, match=r"does not speak this protocol|hung up"):
        accept(Frames(here, time.monotonic() + 0.5), rank=0, context="j", secret=b"s")


def test_frame_is_read_byte_by_byte_and_never_beyond() -> None:
    reader, data = FrameReader(100), handshake.encode({"a": 1})

    found = [reader.feed(data[i : i + 1]) for i in range(len(data))]

    assert found == [None] * (len(data) - 1) + [{"a": 1}]
    assert reader.wanted == 4


@pytest.mark.parametrize(
    "capabilities", [{}, {"rank": 0}, OFFER | {"rank": "0"}, OFFER | {"lanes": 3}, OFFER | {"extra": 1}]
)
def test_offer_of_other_fields_or_types_is_refused(capabilities: dict[str, Any]) -> None:
    assert Capabilities.from_json(OFFER).rank == 0

    with pytest.raises(HandshakeError, match="of another version"):
        Capabilities.from_json(capabilities)
