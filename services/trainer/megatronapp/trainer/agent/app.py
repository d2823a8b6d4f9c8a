"""The agent of a node: accepts ranks, reads what they say and write, and sends it on.

One thread does all of it, so that nothing of a rank's is seen by two at once; only what waits for the network or for a
GPU's driver has threads of its own. What goes wrong with one rank ends that rank's connection and touches no other.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Identity
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.connection import Connection
from megatronapp.trainer.agent.encode import StepMessages, encode_all
from megatronapp.trainer.agent.hello import RankHello
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.megatrace_log import MegatraceLog, MegatraceSettings
from megatronapp.trainer.agent.rank import FLUSH_SECONDS, IMPLAUSIBLE, Rank
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.steps import Step
from megatronapp.trainer.agent.stream import StreamLoop

log = get_logger(__name__)

TICK_SECONDS = 0.25
SHOW_SECONDS = 0.02
"""Between two looks at the frames of ranks that a gateway is connected to."""
MAX_RANKS = 256
"""Connections at once. A node has some ten ranks."""
MAX_ROWS_AT_ONCE = 1 << 16
"""Spans that gather until they are encoded. With numpy's copies a span takes some kilobytes."""
HELLO_SECONDS = 30.0
"""A connection that sent no hello for so long is refused."""
MAX_READS = 64
"""Of what a dead rank has left in its socket."""


class _Peer:
    """A connection, and the rank behind it once it has said who it is."""

    def __init__(self, connection: Connection, process: int | None) -> None:
        self.connection = connection
        self.process = process
        """A descriptor that becomes readable when the process ends, where the kernel has such."""
        self.rank: Rank | None = None
        self.since = time.monotonic()

    def close(self) -> None:
        self.connection.close()
        if self.process is not None:
            os.close(self.process)


_PeerStep = tuple[_Peer, Rank, Step]


class Agent:
    """`run` it in a thread, and `stop` it from another; or let it run until there is nothing left to do."""

    def __init__(self, listener: socket.socket, path: Path, access: Access) -> None:
        """Takes over the listening socket, and its address `path`."""
        listener.setblocking(False)
        self._listener = listener
        self._path = path
        self._access = access
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()
        self._streams = StreamLoop()
        self._flushing: list[threading.Thread] = []
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: os.read(self._wake_read, 1))

    @property
    def ranks(self) -> int:
        """Connected now."""
        return len(self._peers)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Serve ranks until `stop`, or until `until` says so while none is connected; then read what is left of each,
        and send it for at most FLUSH_SECONDS."""
        tick_at = time.monotonic()
        while not self._stopping and not (not self._peers and until()):
            for key, _ in self._selector.select(max(min(tick_at - time.monotonic(), self._wait_seconds()), 0.0)):
                key.data()
            for peer in list(self._peers):
                if peer.rank is not None and peer.rank.shows:
                    self._contained(peer, _show)
            if time.monotonic() >= tick_at:
                tick_at = time.monotonic() + TICK_SECONDS
                self._tick()
        self._finish()

    def stop(self) -> None:
        """From any thread: end `run`."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _wait_seconds(self) -> float:
        """Somebody may look at a rank's model: then frames and commands are passed on more often than steps."""
        shows = any(peer.rank is not None and peer.rank.shows for peer in self._peers)
        return SHOW_SECONDS if shows else TICK_SECONDS

    def _finish(self) -> None:
        self._path.unlink(missing_ok=True)  # before it stops to answer: another agent may take the place then
        self._accept()  # who has connected and was not seen yet
        for peer in list(self._peers):
            self._end(peer, lives=True)
        deadline = time.monotonic() + FLUSH_SECONDS
        for thread in self._flushing:
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._streams.close()
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # nobody there, or no descriptor left for it
                return
            try:
                peer = _Peer(Connection(accepted), None)
            except DataError as error:
                log.warning("rank_refused", reason=str(error))
                accepted.close()
                continue
            if len(self._peers) >= MAX_RANKS:
                log.warning("rank_refused", reason=f"{MAX_RANKS} processes are connected")
                peer.close()
                continue
            self._peers.add(peer)
            self._selector.register(peer.connection, selectors.EVENT_READ, lambda peer=peer: self._read(peer))
            with contextlib.suppress(OSError):
                peer.process = os.pidfd_open(peer.connection.pid)
                self._selector.register(peer.process, selectors.EVENT_READ, lambda peer=peer: self._end(peer))

    def _read(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._contained(peer, self._receive)
        if peer in self._peers and peer.connection.ended:
            self._end(peer)

    def _tick(self) -> None:
        """The steps of all ranks are encoded at once, as far as they are short."""
        steps: list[_PeerStep] = []
        for peer in list(self._peers):
            self._contained(peer, lambda peer: self._read_steps(peer, steps))
            if sum(step.table.shape[1] for *_, step in steps) > MAX_ROWS_AT_ONCE:
                self._send(steps)
                steps.clear()
        self._send(steps)
        for peer in list(self._peers):
            self._contained(peer, _beat)

    def _read_steps(self, peer: _Peer, steps: list[_PeerStep]) -> None:
        """The head is read before the frames: names that its rows need were sent before them."""
        if peer.rank is None:
            if time.monotonic() - peer.since > HELLO_SECONDS:
                raise DataError(f"process {peer.connection.pid} did not say who it is")
            return
        until = peer.rank.head()
        if peer.rank.unread(until):
            self._receive(peer)
            steps += [(peer, peer.rank, step) for step in peer.rank.read(until)]

    def _send(self, steps: Sequence[_PeerStep]) -> None:
        encoded = encode_all([(rank.names, step) for _, rank, step in steps])
        for (peer, rank, _), messages in zip(steps, encoded, strict=True):
            if peer in self._peers:
                self._contained(peer, partial(_send, rank, messages))

    def _receive(self, peer: _Peer) -> None:
        for key, value in peer.connection.receive():
            if peer.rank is not None:
                peer.rank.take(key, value)
            elif key == "hello":
                peer.rank = self._register(peer.connection, value)
            else:
                raise DataError(f"process {peer.connection.pid} said {key!r:.40} before hello")

    def _register(self, connection: Connection, document: Any) -> Rank:
        hello = RankHello.parse(document)
        identity = hello.message.identity
        if any(_same_rank(peer, identity) for peer in self._peers):
            raise DataError(f"another process speaks for rank {identity.rank}")
        fd = connection.take_segment()
        if fd is None:
            raise DataError("a hello without a segment")
        with contextlib.ExitStack() as opened:
            segment = Segment(fd)
            opened.callback(segment.close)
            kept: KeptOperations | None = None
            if (operations := connection.take_operations()) is not None:
                kept = KeptOperations(Segment(operations), _megatrace_log(identity.rank))
                opened.callback(kept.close)
            rank = Rank(connection, hello, segment, self._streams, self._access, kept)
            opened.pop_all()
            return rank

    def _end(self, peer: _Peer, *, lives: bool = False) -> None:
        """The rank has said goodbye, is gone, or was refused; or it `lives` as far as was seen, and the agent ends. Its
        socket is closed when all it has left was read: then it shows whether it does."""
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._selector.unregister(peer.connection)
        if peer.process is not None:
            self._selector.unregister(peer.process)
        try:
            for _ in range(MAX_READS):
                if peer.connection.ended or peer.connection.idle:
                    break
                self._receive(peer)
        except IMPLAUSIBLE as error:
            self._refuse(peer, error)
        if peer.rank is not None:
            self._flushing = [thread for thread in self._flushing if thread.is_alive()]
            self._flushing.append(peer.rank.end(lives=lives and not peer.connection.ended))
        peer.close()

    def _contained(self, peer: _Peer, action: Callable[[_Peer], None]) -> None:
        """A rank whose records are implausible is disconnected; so is one that shows a mistake of this agent's own."""
        try:
            action(peer)
        except IMPLAUSIBLE as error:
            self._refuse(peer, error)
            self._end(peer, lives=True)
        except Exception:
            log.exception("rank_not_served", pid=peer.connection.pid)
            self._end(peer, lives=True)

    def _refuse(self, peer: _Peer, error: Exception) -> None:
        log.warning("rank_left", pid=peer.connection.pid, reason=str(error))


def _megatrace_log(rank: int) -> MegatraceLog | None:
    """As the agent's own environment asks for, which is the launcher's."""
    try:
        settings = MegatraceSettings.of(os.environ)
    except UsageError as error:  # which the rank has ended with
        log.warning("no_megatrace_log", rank=rank, reason=str(error))
        return None
    return MegatraceLog(settings, rank) if settings else None


def _send(rank: Rank, messages: StepMessages, _: _Peer) -> None:
    rank.send(messages)


def _show(peer: _Peer) -> None:
    if peer.rank is not None:
        peer.rank.show()


def _beat(peer: _Peer) -> None:
    if peer.rank is not None:
        peer.rank.tick()


def _same_rank(peer: _Peer, identity: Identity) -> bool:
    if peer.rank is None:
        return False
    known = peer.rank.identity
    return (known.run, known.attempt, known.rank) == (identity.run, identity.attempt, identity.rank)
