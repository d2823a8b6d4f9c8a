"""One rank meets its peers: connects, proves who it is, agrees on lanes, and shares memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from megatronapp.rdma import _native, handshake
from megatronapp.rdma.errors import HandshakeError, TransferTimeoutError, TransportError
from megatronapp.rdma.handshake import Session
from megatronapp.rdma.lanes import Offer, Route, choose
from megatronapp.rdma.rendezvous import Directory, Listener, connect, timeout_of

HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Met:
    """A peer, reached. `inbound` and `outbound` are descriptors of shared memory, -1 without; the taker closes them."""

    peer: int
    connection: socket.socket
    route: Route
    theirs: Offer
    inbound: int
    outbound: int


class Meeting:
    """All ranks that call `meet` with each other's numbers find each other, in any order."""

    def __init__(self, offer: Offer, directory: Directory, listener: Listener, secret: bytes) -> None:
        self._offer = offer
        self._directory = directory
        self._listener = listener
        self._secret = secret

    def meet(self, peers: Collection[int], timeout_seconds: float) -> Iterator[Met]:
        """Higher ranks call lower ones.

        Raises TransferTimeoutError for peers that don't come, HandshakeError for one that is somebody else, and
        LaneUnavailableError when no lane suits both.
        """
        deadline = time.monotonic() + timeout_seconds
        for peer in sorted(peer for peer in peers if peer < self._offer.rank):
            yield self._call(peer, deadline)
        yield from self._wait_for({peer for peer in peers if peer > self._offer.rank}, deadline)

    def _call(self, peer: int, deadline: float) -> Met:
        endpoint = self._directory.find(peer, max(deadline - time.monotonic(), 0.001))
        local = "shm" in self._offer.lanes or "cuda_ipc" in self._offer.lanes
        connection = connect(endpoint, max(deadline - time.monotonic(), 0.001), local=local)
        try:
            # The peer may be busy with others before it: it has all the time that is left.
            with timeout_of(connection, max(deadline - time.monotonic(), 0.001)):
                session = handshake.dial(
                    connection,
                    rank=self._offer.rank,
                    peer=peer,
                    context=self._directory.context,
                    secret=self._secret,
                )
                return self._agree(session)
        except BaseException:
            connection.close()
            raise

    def _wait_for(self, missing: set[int], deadline: float) -> Iterator[Met]:
        turned_away: list[str] = []
        while missing:
            left = deadline - time.monotonic()
            connection = self._listener.accept(max(left, 0))
            if connection is None:
                raise TransferTimeoutError(
                    f"rank {self._offer.rank} waited in vain for ranks {sorted(missing)}"
                    + (f"; turned away: {'; '.join(turned_away)}" if turned_away else "")
                )
            session = self._admit(connection, missing, turned_away)
            if session is not None:
                with timeout_of(connection, HANDSHAKE_SECONDS):
                    met = self._agree(session)
                missing.discard(met.peer)
                yield met

    def _admit(self, connection: socket.socket, expected: set[int], turned_away: list[str]) -> Session | None:
        """A stranger must not end the job: it is sent away, and remembered for the error of those who don't come."""
        try:
            with timeout_of(connection, HANDSHAKE_SECONDS):
                session = handshake.accept(
                    connection, rank=self._offer.rank, context=self._directory.context, secret=self._secret
                )
                if session.peer not in expected:
                    raise HandshakeError(f"rank {session.peer} called, which is not expected (again)")
                return session
        except HandshakeError as error:
            connection.close()
            turned_away.append(str(error))
            return None

    def _agree(self, session: Session) -> Met:
        mine = self._offer
        session.send(mine.to_json())
        theirs = Offer.from_json(session.receive())
        if theirs.protocol != mine.protocol or theirs.checksum != mine.checksum:
            raise HandshakeError(
                f"rank {session.peer} runs another version or configuration of megatronapp-rdma "
                f"(protocol {theirs.protocol}, checksum {theirs.checksum}; here {mine.protocol}, {mine.checksum})"
            )
        reaches = gpu_reaches(mine.gpu, theirs.gpu)
        session.send({"reaches": reaches})
        gpus_reach = session.receive().get("reaches") is True and reaches
        local = session.connection.family == socket.AF_UNIX
        route = choose(mine, theirs, shared_memory=local, gpus_reach=gpus_reach)
        inbound, outbound = -1, -1
        if "shm" in (route.cpu, route.cuda) or route.cuda == "cuda_ipc":
            inbound, outbound = self._share(session)
        return Met(
            peer=session.peer,
            connection=session.connection,
            route=route,
            theirs=theirs,
            inbound=inbound,
            outbound=outbound,
        )

    @staticmethod
    def _share(session: Session) -> tuple[int, int]:
        """Each gives the other the memory into which it wants to be sent."""
        try:
            inbound = _native.make_segment()
        except OSError as error:
            with suppress(HandshakeError):  # which may have no memory either, and be gone
                session.send({"error": str(error)})
            raise TransportError(f"no shared memory with rank {session.peer}: {error}") from error
        session.send({})
        answer = session.receive()
        if "error" in answer:
            os.close(inbound)
            raise TransportError(f"no shared memory with rank {session.peer}, there: {answer['error']}")
        socket.send_fds(session.connection, [b"\0"], [inbound])
        _, descriptors, _, _ = socket.recv_fds(session.connection, 1, 1)
        if len(descriptors) != 1:
            os.close(inbound)
            raise HandshakeError(f"rank {session.peer} hung up while memory was shared")
        return inbound, descriptors[0]


def gpu_reaches(mine: str | None, theirs: str | None) -> bool:
    """Whether this rank's current GPU can write into the memory of the one with that uuid."""
    if mine is None or theirs is None:
        return False
    current = torch.cuda.current_device()
    for device in range(torch.cuda.device_count()):
        if gpu_identity(device) == theirs:
            return device == current or torch.cuda.can_device_access_peer(current, device)
    return False


def gpu_identity(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
