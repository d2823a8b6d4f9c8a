"""A peer that dies, stops or hangs up: the survivor knows which one, soon, and nothing is left of both."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from megatronapp.rdma import Config, Engine, EngineClosedError, Kind, PeerLostError, Spec, Tag
from tests.support.engines import HOST_LANES, Held, engines, lane_config, named_sockets, require_lane

KNOWN_WITHIN_SECONDS = 1.0
LARGE = 32 << 20


def peer(store: str, lane: str, settings: dict[str, float], what: str) -> None:
    """Rank 1. The test ends it."""
    torch.set_num_threads(1)
    engine = Engine(1, 2, store, config=lane_config(lane, **settings))
    engine.connect([0])
    if what == "receives":
        engine.irecv(Spec((LARGE,), torch.uint8), 0, Tag(Kind.FORWARD))
    if what == "streams":
        stream_for_ever(engine, 0)
    if what == "lists":
        tell_what_arrived(engine, 0)
    threading.Event().wait()


def tell_what_arrived(engine: Engine, other: int) -> None:
    """The order of two messages, for which receives are posted in the order 0, 1."""
    engine.irecv(Spec((1,), torch.uint8), other, Tag(Kind.CONTROL)).wait()
    for microbatch in range(2):
        engine.irecv(Spec((3,), torch.uint8), other, Tag(Kind.FORWARD, microbatch=microbatch))
    engine.isend(torch.zeros(1), other, Tag(Kind.CONTROL)).wait()
    while len(engine.arrived(Kind.FORWARD)) < 2:
        time.sleep(0.001)
    order = torch.tensor([handle.tag.microbatch for handle in engine.arrived(Kind.FORWARD)])
    engine.isend(order, other, Tag(Kind.CONTROL, microbatch=1)).wait()


def stream_for_ever(engine: Engine, other: int) -> None:
    """Messages both ways, without an end. Raises PeerLostError when the other is gone."""
    chance = random.Random(engine.rank)
    for step in range(1 << 30):
        size = (step * 7919) % (1 << 18)
        receive = engine.irecv(Spec((size,), torch.uint8), other, Tag(Kind.FORWARD, round=step))
        send = engine.isend(torch.full((size,), step % 251, dtype=torch.uint8), other, Tag(Kind.FORWARD, round=step))
        if chance.random() < 0.5:
            send.wait()
        receive.wait()
        assert (receive.tensor == step % 251).all()
        send.wait()


@pytest.fixture(params=[pytest.param(each, marks=() if each == "shm" else pytest.mark.long) for each in HOST_LANES])
def lane(request: pytest.FixtureRequest) -> str:
    require_lane(request.param)
    return str(request.param)


@cache
def forkserver() -> multiprocessing.context.ForkServerContext:
    """Started: from then on a process leaves nothing in this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["megatronapp.rdma", "megatronapp.trainer.launch"])
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    first.close()
    return context


class Pair:
    """Rank 0 in this process, rank 1 in one of its own."""

    def __init__(self, folder: Path, lane: str, what: str, **settings: float) -> None:
        store = str(folder / f"store-{random.getrandbits(40)}")
        self.peer: BaseProcess = forkserver().Process(target=peer, args=(store, lane, settings, what))
        self.peer.start()
        config: Config = lane_config(lane, connect_timeout_seconds=30, **settings)
        self.engine = Engine(0, 2, store, config=config)
        self.engine.connect([1])
        self.sockets = [self.engine._directory.find(rank, 1).local for rank in range(2)]
        self.signalled_at = float("inf")

    def signal(self, number: signal.Signals) -> None:
        assert self.peer.pid is not None
        self.signalled_at = time.monotonic()
        os.kill(self.peer.pid, number)

    def stop(self) -> None:
        """Returns when none of its threads runs any more."""
        self.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.peer.pid}/task")
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
            time.sleep(0.001)

    def close(self) -> None:
        self.peer.kill()
        self.peer.join()
        self.peer.close()
        self.engine.abort("the test is over")
        self.engine.close()

    def learns_of_the_death(self, action: Callable[[], object]) -> None:
        with pytest.raises(PeerLostError, match="rank 1 is lost"):
            action()
        assert time.monotonic() - self.signalled_at < KNOWN_WITHIN_SECONDS


@contextmanager
def nothing_is_left(lane: str) -> Iterator[list[Pair]]:
    """Ends the pairs that are put into it. Then this process must have given up everything that it had with the dead
    ones, and nobody may hold a socket of theirs, as a forgotten process of theirs would."""
    forkserver()
    with engines(lane):  # what libraries keep for good, they have now
        pass
    before = Held.now()
    pairs: list[Pair] = []
    try:
        yield pairs
    finally:
        sockets = [name for pair in pairs for name in pair.sockets]
        while pairs:
            pairs.pop().close()
    after = Held.after(before)
    assert after.no_more_than(before), (before, after)
    assert not named_sockets(*sockets)


@pytest.fixture
def start(tmp_path: Path, lane: str) -> Iterator[object]:
    with nothing_is_left(lane) as pairs:

        def start(what: str, **settings: float) -> Pair:
            pairs.append(Pair(tmp_path, lane, what, **settings))
            return pairs[-1]

        yield start


def test_killed_peer_ends_a_receive(start) -> None:
    pair = start("idles")
    receive = pair.engine.irecv(Spec((5,), torch.uint8), 1, Tag(Kind.FORWARD))

    pair.signal(signal.SIGKILL)

    with pytest.raises(PeerLostError, match=r"rank 1 is lost: its process has ended|its lane can't go on") as raised:
        receive.wait(KNOWN_WITHIN_SECONDS)
    assert raised.value.rank == 1
    assert pair.engine.failed() == {1: raised.value.reason}
    with pytest.raises(PeerLostError):
        pair.engine.check()
    with pytest.raises(PeerLostError):
        pair.engine.isend(torch.zeros(1), 1, Tag(Kind.BACKWARD))


def test_killed_peer_ends_a_send_that_nobody_received(start) -> None:
    pair = start("idles")
    send = pair.engine.isend(torch.zeros(LARGE, dtype=torch.uint8), 1, Tag(Kind.FORWARD))

    pair.signal(signal.SIGKILL)

    with pytest.raises(PeerLostError, match="rank 1 is lost"):
        send.wait(KNOWN_WITHIN_SECONDS)


def test_what_came_while_it_was_stopped_is_listed_in_the_order_of_sending(start) -> None:
    pair = start("lists")
    pair.engine.isend(torch.zeros(1, dtype=torch.uint8), 1, Tag(Kind.CONTROL)).wait(10)
    pair.engine.irecv(Spec((1,), torch.float32), 1, Tag(Kind.CONTROL)).wait(10)
    order = pair.engine.irecv(Spec((2,), torch.int64), 1, Tag(Kind.CONTROL, microbatch=1))

    pair.stop()
    for microbatch in (1, 0):
        pair.engine.isend(torch.zeros(3, dtype=torch.uint8), 1, Tag(Kind.FORWARD, microbatch=microbatch)).wait(10)
    pair.signal(signal.SIGCONT)

    order.wait(10)
    assert order.tensor.tolist() == [1, 0]


@pytest.mark.parametrize("lane", ["shm"], indirect=True)  # a heartbeat is the same for all
def test_stopped_peer_is_lost_after_silence(start) -> None:
    pair = start("receives", heartbeat_seconds=0.2, dead_after_seconds=1.0)
    receive = pair.engine.irecv(Spec((5,), torch.uint8), 1, Tag(Kind.FORWARD))

    pair.signal(signal.SIGSTOP)

    with pytest.raises(PeerLostError, match="nothing was heard of it: its process is stopped or the network is cut"):
        receive.wait(5)


def test_peer_killed_while_messages_move_is_known_and_leaves_nothing(start) -> None:
    pair = start("streams")
    threading.Timer(0.1, pair.signal, [signal.SIGKILL]).start()

    pair.learns_of_the_death(lambda: stream_for_ever(pair.engine, 1))


def test_memory_of_a_dead_peer_is_given_up_when_the_engine_closes(start) -> None:
    before = Held.now()
    pair = start("idles")
    held = Held.now().mappings - before.mappings

    pair.signal(signal.SIGKILL)
    pair.learns_of_the_death(lambda: pair.engine.irecv(Spec((1,), torch.uint8), 1, Tag(Kind.FORWARD)).wait())
    pair.engine.abort("over")
    pair.engine.close()

    assert held == (2 if "shm" in str(pair.engine.lanes()[1]) else 0)
    assert Held.now().mappings == before.mappings  # although the engine is still there


def test_peer_that_was_idle_is_reported_without_a_message(start) -> None:
    pair = start("idles")

    pair.signal(signal.SIGKILL)
    deadline = time.monotonic() + KNOWN_WITHIN_SECONDS
    while not pair.engine.failed() and time.monotonic() < deadline:
        time.sleep(0.005)

    assert pair.engine.failed().keys() == {1}


def test_fork_neither_uses_the_engine_nor_hides_the_death_of_its_parent(start) -> None:
    pair = start("idles")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pair.engine.poll()
        except EngineClosedError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert b"fork" in os.read(reader, 100)
    assert pair.engine.poll() == []
    os.close(reader)
    os.close(writer)


def in_a_fork(action: Callable[[], object]) -> tuple[int, str]:
    """How a forked child ends that does this: its exit status, -1 when it hangs, and what it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            os.write(writer, b"nothing")
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 5
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as raised:
        return (ended[1] if ended[0] else -1), raised.read().decode()


def leave(engine: Engine) -> None:
    with engine:
        pass


def test_fork_may_close_leave_or_abort_the_engine_of_its_parent(start) -> None:
    pair = start("streams")  # its threads are busy, and hold locks

    def stream() -> None:
        with suppress(PeerLostError):
            stream_for_ever(pair.engine, 1)

    streaming = threading.Thread(target=stream)
    streaming.start()

    for _ in range(5):
        for action in (pair.engine.close, pair.engine.abort, lambda: leave(pair.engine)):
            assert in_a_fork(action) == (0, "nothing")
        for refused in (pair.engine.failed, pair.engine.fileno, pair.engine.check, lambda: pair.engine.arrived(1)):
            assert in_a_fork(refused) == (0, "EngineClosedError")

    assert pair.engine.failed() == {}
    pair.peer.kill()
    streaming.join()


def test_fork_may_not_wait_for_a_message_of_its_parent(start) -> None:
    pair = start("idles")
    receive = pair.engine.irecv(Spec((1,), torch.uint8), 1, Tag(Kind.FORWARD))

    assert in_a_fork(receive.wait) == (0, "EngineClosedError")
    assert in_a_fork(receive.cancel) == (0, "EngineClosedError")
