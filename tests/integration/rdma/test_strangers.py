"""Whoever reaches a rank's port may say anything, at any pace: the ranks meet meanwhile, and messages pass."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import Config, Engine, Kind, Spec, Tag, TransferTimeoutError, peer_acceptor
from tests.support.engines import in_parallel

CONFIG = Config(lanes=("tcp",), connect_timeout_seconds=30)
MET_WITHIN_SECONDS = 8.0
"""Less than a stranger's whole time."""
CONTEXT = "job/0"
HELLO = {"rank": 1, "to": 0, "context": CONTEXT, "nonce": "ab"}


def frame(message: Any) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


def engines(config: Config = CONFIG) -> list[Engine]:
    store = HashStore()
    return in_parallel([lambda r=r: Engine(r, 2, store, config=config) for r in range(2)])  # type: ignore[misc]


def call(engine: Engine) -> socket.socket:
    endpoint = engine._listener.endpoint
    return socket.create_connection((endpoint.address, endpoint.port), 10)


def connect_peers(pair: list[Engine]) -> float:
    """Seconds until both have met."""
    start = time.monotonic()
    in_parallel([lambda e=e: e.connect([0, 1]) for e in pair])  # type: ignore[misc]
    return time.monotonic() - start


def exchange(pair: list[Engine]) -> None:
    """A message each way, and each over the lane that it should take."""
    for engine, other in (pair, pair[::-1]):
        receive = other.irecv(Spec((3,), torch.int32), engine.rank, Tag(Kind.FORWARD))
        engine.isend(torch.tensor([1, 2, engine.rank], dtype=torch.int32), other.rank, Tag(Kind.FORWARD)).wait(10)
        receive.wait(10)
        assert receive.tensor.tolist() == [1, 2, engine.rank]
        assert {peer: str(route) for peer, route in engine.lanes().items()} == {other.rank: "tcp"}
        engine.check()


def close(pair: list[Engine]) -> None:
    in_parallel([lambda e=e: e.close() for e in pair])  # type: ignore[misc]


@contextmanager
def said(engine: Engine, *frames: bytes) -> Iterator[None]:
    """A stranger who says this at once and then listens."""
    with call(engine) as stranger:
        for each in frames:
            stranger.sendall(each)
        yield


@contextmanager
def answered(engine: Engine, proof: Any) -> Iterator[None]:
    """A stranger who speaks the protocol up to its proof."""
    with call(engine) as stranger:
        stranger.sendall(frame(HELLO))
        threading.Thread(target=_prove, args=(stranger, proof), daemon=True).start()
        yield


def _prove(stranger: socket.socket, proof: Any) -> None:
    with suppress(OSError):
        stranger.recv(1)  # the rank's answer begins
        stranger.sendall(frame(proof))


@contextmanager
def dripping(engine: Engine) -> Iterator[None]:
    """One byte at a time, each before anybody could call it silent."""
    over = threading.Event()
    with call(engine) as stranger:

        def drip() -> None:
            with suppress(OSError):
                for byte in frame(HELLO) * 100:
                    stranger.sendall(bytes([byte]))
                    if over.wait(1):
                        return

        threading.Thread(target=drip, daemon=True).start()
        yield
        over.set()


WRONG_VALUES = [None, True, -1, 1.5, 10**400, "é", "\ud800", [], {}, "x" * 3000]
STRANGERS: dict[str, Callable[[Engine], Any]] = {
    "deep JSON": lambda engine: said(engine, frame(b"[" * 60_000)),
    "deep JSON that fits": lambda engine: said(engine, frame(b"[" * 4_000)),
    "a huge length": lambda engine: said(engine, struct.pack("!I", 2**32 - 1)),
    "an empty frame": lambda engine: said(engine, struct.pack("!I", 0)),
    "no UTF-8": lambda engine: said(engine, frame(b'{"rank": "\xff"}')),
    "HTTP": lambda engine: said(engine, b"GET / HTTP/1.1\r\n\r\n"),
    "nothing": lambda engine: said(engine),
    "half a length": lambda engine: said(engine, b"\0\0"),
    "a proof of other letters": lambda engine: answered(engine, {"proof": "é" * 64}),
    "a byte a second": dripping,
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_stranger_neither_stops_nor_delays_a_start(stranger: str) -> None:
    pair = engines()

    with STRANGERS[stranger](pair[0]):
        seconds = connect_peers(pair)
        exchange(pair)

    assert seconds < MET_WITHIN_SECONDS
    close(pair)


@pytest.mark.parametrize("field", ["rank", "to", "context", "nonce", "proof"])
def test_any_value_in_any_field_is_refused(field: str) -> None:
    pair = engines()

    with ExitStack() as strangers:
        for value in WRONG_VALUES:
            if field == "proof":
                strangers.enter_context(answered(pair[0], {"proof": value}))
            else:
                strangers.enter_context(said(pair[0], frame(HELLO | {field: value}), frame({"proof": "0" * 64})))
        seconds = connect_peers(pair)
        exchange(pair)

    assert seconds < MET_WITHIN_SECONDS
    close(pair)


@pytest.mark.parametrize("says", [b"", frame(HELLO)], ids=["silent", "greeting"])
def test_five_hundred_at_once_do_not_delay_a_start(says: bytes) -> None:
    pair = engines()

    with ExitStack() as strangers:
        for _ in range(500):
            strangers.enter_context(call(pair[0])).sendall(says)
        seconds = connect_peers(pair)
        exchange(pair)

    assert seconds < MET_WITHIN_SECONDS
    close(pair)


def test_callers_after_the_ranks_have_met_do_no_harm() -> None:
    pair = engines()
    connect_peers(pair)

    with ExitStack() as strangers:
        for _ in range(100):
            strangers.enter_context(call(pair[0])).sendall(frame(HELLO))
        exchange(pair)
        close(pair)


def test_whole_handshake_has_one_deadline() -> None:
    alone = Engine(0, 2, HashStore(), secret=b"s", config=Config(lanes=("tcp",), connect_timeout_seconds=2))
    start = time.monotonic()

    with dripping(alone), pytest.raises(TransferTimeoutError, match="waited in vain for ranks"):
        alone.connect([1])

    assert time.monotonic() - start < 2 + MET_WITHIN_SECONDS
    alone.close()


def test_who_was_sent_away_for_want_of_room_may_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_acceptor, "MAX_CALLERS", 8)
    pair = engines()

    with ExitStack() as strangers:
        calling = threading.Event()

        def crowd() -> None:
            while not calling.wait(0.01):
                strangers.enter_context(call(pair[0])).sendall(frame(HELLO))

        crowding = threading.Thread(target=crowd)
        crowding.start()
        seconds = connect_peers(pair)
        calling.set()
        crowding.join()
        exchange(pair)

    assert seconds < MET_WITHIN_SECONDS
    close(pair)
