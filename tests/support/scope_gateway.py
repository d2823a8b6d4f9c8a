"""A gateway for the ranks of a test: the real service of scope.proto, with what came in by rank."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from megatronapp.core.scope.frame import Frame, unpack
from megatronapp.v1 import scope_pb2, scope_pb2_grpc

WAIT_SECONDS = 60.0


class ScopeGateway(scope_pb2_grpc.ScopeIngestServicer):
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._down: dict[int, queue.Queue[scope_pb2.ScopeDown | None]] = {}
        self.hellos: dict[int, scope_pb2.ScopeHello] = {}
        self.frames: dict[int, list[Frame]] = defaultdict(list)
        self.acks: dict[tuple[int, str], scope_pb2.ScopeAck] = {}
        self.events: list[tuple[int, scope_pb2.ScopeEvent]] = []
        self.in_force: dict[int, int] = {}
        """By rank the revision of the newest demand that it shows."""
        self.left: set[int] = set()
        self._at_once: dict[int, tuple[int, scope_pb2.ScopeDown]] = {}
        """By how many ranks have attached: (rank, what it is told then)."""

    def Attach(  # noqa: N802  (gRPC's name)
        self, requests: Iterator[scope_pb2.ScopeUp], context: Any
    ) -> Iterator[scope_pb2.ScopeDown]:
        hello = next(requests).hello
        rank = hello.identity.rank
        down: queue.Queue[scope_pb2.ScopeDown | None] = queue.Queue()
        down.put(scope_pb2.ScopeDown(accepted=scope_pb2.ScopeAccepted()))
        with self._changed:
            self.hellos[rank], self._down[rank] = hello, down
            if (told := self._at_once.pop(len(self.hellos), None)) is not None:
                to, message = told
                self._down[to].put(message)
            self._changed.notify_all()
        threading.Thread(target=self._read, args=(rank, requests, down), daemon=True).start()
        while (message := down.get()) is not None:
            yield message

    def _read(self, rank: int, requests: Iterator[scope_pb2.ScopeUp], down: Any) -> None:
        try:
            for up in requests:
                with self._changed:
                    self._take(rank, up)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        with self._changed:
            self.left.add(rank)
            self._changed.notify_all()
        down.put(None)

    def _take(self, rank: int, up: scope_pb2.ScopeUp) -> None:
        match up.WhichOneof("body"):
            case "frame":
                frame = unpack(up.frame.frame)
                assert frame.subscription == up.frame.tap
                self.frames[rank].append(frame)
            case "ack":
                self.acks[rank, up.ack.command] = up.ack
            case "in_force":
                self.in_force[rank] = up.in_force.revision
            case "event":
                self.events.append((rank, up.event))

    # -- what a test asks for --

    def wait(self, what: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Until it is true; returns it."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := what()):
                assert time.monotonic() < deadline, "it did not come in time"
                self._changed.wait(0.2)
        return found

    def demand(self, revision: int, taps: Sequence[scope_pb2.ScopeTap], ranks: Sequence[int], **options: Any) -> None:
        demand = scope_pb2.ScopeDemand(revision=revision, taps=taps, **options)
        for rank in ranks:
            self._down[rank].put(scope_pb2.ScopeDown(demand=demand))

    def show(self, revision: int, taps: Sequence[scope_pb2.ScopeTap], ranks: Sequence[int]) -> None:
        """A demand, until it is in force. The first rank hears of it before the others do."""
        for told in (ranks[:1], ranks[1:]):
            self.demand(revision, taps, told)
            self.wait(lambda told=told: all(self.in_force.get(rank) == revision for rank in told))

    def command(self, identifier: str, to: int, ranks: Sequence[int], **action: Any) -> list[scope_pb2.ScopeAck]:
        """Tell one rank; returns what all have answered."""
        self._down[to].put(_command(identifier, **action))
        return self.answers(identifier, ranks)

    def answers(self, identifier: str, ranks: Sequence[int]) -> list[scope_pb2.ScopeAck]:
        self.wait(lambda: all((rank, identifier) in self.acks for rank in ranks))
        return [self.acks[rank, identifier] for rank in ranks]

    def train(
        self, identifier: str, to: int, ranks: Sequence[int], do: str, **options: Any
    ) -> list[scope_pb2.ScopeAck]:
        return self.command(identifier, to, ranks, train=scope_pb2.ScopeTrainControl(do=do, **options))

    def pause_at_once(self, identifier: str, to: int, ranks: int) -> None:
        """Before the job begins, so that it does not end before it is told: as soon as so many have attached, for one
        that has not would not answer."""
        control = scope_pb2.ScopeTrainControl(do="pause", lease_seconds=120)
        self._at_once[ranks] = to, _command(identifier, train=control)

    def states(self) -> list[tuple[str, int]]:
        """(state, step), as they came."""
        return [(event.state.state, event.state.step) for _, event in self.events if event.HasField("state")]


def _command(identifier: str, **action: Any) -> scope_pb2.ScopeDown:
    return scope_pb2.ScopeDown(command=scope_pb2.ScopeCommand(id=identifier, by="test", **action))


@contextmanager
def scope_gateway() -> Iterator[tuple[ScopeGateway, str]]:
    """The gateway and its address."""
    gateway = ScopeGateway()
    server = grpc.server(ThreadPoolExecutor(16))
    scope_pb2_grpc.add_ScopeIngestServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield gateway, f"127.0.0.1:{port}"
    finally:
        for down in gateway._down.values():
            down.put(None)
        server.stop(0.2)
