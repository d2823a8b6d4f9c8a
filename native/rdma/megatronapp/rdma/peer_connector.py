"""One rank meets its peers: connects, proves who it is, agrees on lanes, and shares memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from megatronapp.rdma import _native, handshake
from megatronapp.rdma.errors import HandshakeError, TransferTimeoutError, TransportError
from megatronapp.rdma.handshake import Frames, HungUpError, Session
from megatronapp.rdma.lanes import Capabilities, Route, choose
from megatronapp.rdma.peer_acceptor import PeerAcceptor
from megatronapp.rdma.rendezvous import Directory, Listener, connect

RETRY_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Descriptors, -1 without: shared memory to be sent into and to send into, and sockets on which this rank and the
    peer hand over GPU memory. Whoever has attached them closes them."""

    inbound: int = -1
    outbound: int = -1
    own_chunks: int = -1
    peer_chunks: int = -1

    def close(self) -> None:
        for descriptor in (self.inbound, self.outbound, self.own_chunks, self.peer_chunks):
            if descriptor >= 0:
                os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class PeerLink:
    """A peer, reached."""

    peer: int
    connection: socket.socket
    route: Route
    theirs: Capabilities
    shared: Shared


class PeerConnector:
    """All ranks that call `meet` with each other's numbers find each other, in any order."""

    def __init__(self, capabilities: Capabilities, directory: Directory, listener: Listener, secret: bytes) -> None:
        self._capabilities = capabilities
        self._directory = directory
        self._listener = listener
        self._secret = secret

    def connect_peers(self, peers: Collection[int], timeout_seconds: float) -> Iterator[PeerLink]:
        """Higher ranks call lower ones.

        Raises TransferTimeoutError for peers that don't come, HandshakeError for one that is somebody else, and
        LaneUnavailableError when no lane suits both.
        """
        deadline = time.monotonic() + timeout_seconds
        for peer in sorted(peer for peer in peers if peer < self._capabilities.rank):
            yield self._call(peer, deadline)
        yield from self._wait_for({peer for peer in peers if peer > self._capabilities.rank}, deadline)

    def _call(self, peer: int, deadline: float) -> PeerLink:
        """Again when the peer hangs up before it has made its offer: it may have had too many callers at once."""
        while True:
            endpoint = self._directory.find(peer, max(deadline - time.monotonic(), 0.001))
            local = "shm" in self._capabilities.lanes or "cuda_ipc" in self._capabilities.lanes
            connection = connect(endpoint, max(deadline - time.monotonic(), 0.001), local=local)
            try:
                return self._agree(*self._dial(connection, peer, deadline))
            except _TryAgainError as again:
                connection.close()
                if time.monotonic() + RETRY_SECONDS >= deadline:
                    raise again.error from None
                time.sleep(RETRY_SECONDS)
            except BaseException:
                connection.close()
                raise

    def _dial(self, connection: socket.socket, peer: int, deadline: float) -> tuple[Session, Capabilities]:
        # The peer may be busy with others before it: it has all the time that is left.
        frames, context = Frames(connection, deadline), self._directory.context
        try:
            session = handshake.dial(
                frames, rank=self._capabilities.rank, peer=peer, context=context, secret=self._secret
            )
            return session, self._exchange_capabilities(session)
        except HungUpError as error:
            raise _TryAgainError(error) from error

    def _wait_for(self, missing: set[int], deadline: float) -> Iterator[PeerLink]:
        if not missing:
            return
        rank, context = self._capabilities.rank, self._directory.context
        peer_acceptor = PeerAcceptor(
            self._listener, lambda: handshake.accepting(rank=rank, context=context, secret=self._secret)
        )
        try:
            while missing:
                found = peer_acceptor.next(deadline)
                if found is None:
                    raise TransferTimeoutError(_in_vain(rank, missing, peer_acceptor.sent_away))
                frames, proved = found
                if proved.peer not in missing:
                    peer_acceptor.sent_away.append(f"rank {proved.peer} called, which is not expected (again)")
                    frames.connection.close()
                    continue
                yield self._agree_or_close(Session(frames, rank, proved))
                missing.discard(proved.peer)
        finally:
            peer_acceptor.close()

    def _agree_or_close(self, session: Session) -> PeerLink:
        try:
            return self._agree(session, self._exchange_capabilities(session))
        except BaseException:
            session.connection.close()
            raise

    def _exchange_capabilities(self, session: Session) -> Capabilities:
        session.send(self._capabilities.to_json())
        theirs = Capabilities.from_json(session.receive())
        if theirs.rank != session.peer:
            raise HandshakeError(f"rank {session.peer} says that it is rank {theirs.rank}")
        return theirs

    def _agree(self, session: Session, theirs: Capabilities) -> PeerLink:
        mine = self._capabilities
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
        shares = route.cpu == "shm" or route.cuda == "cuda_ipc"
        shared = self._share(session) if shares else Shared()
        session.connection.settimeout(None)
        return PeerLink(peer=session.peer, connection=session.connection, route=route, theirs=theirs, shared=shared)

    @staticmethod
    def _share(session: Session) -> Shared:
        """Each gives the other the memory into which it wants to be sent, and a socket for GPU memory that follows."""
        try:
            inbound = _native.make_segment()
        except OSError as error:
            with suppress(HandshakeError):  # which may have no memory either, and be gone
                session.send({"error": str(error)})
            raise TransportError(f"no shared memory with rank {session.peer}: {error}") from error
        own_chunks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = Shared(inbound=inbound, own_chunks=own_chunks.detach())
        with theirs:
            try:
                session.send({})
                answer = session.receive()
                if "error" in answer:
                    raise TransportError(f"no shared memory with rank {session.peer}, there: {answer['error']}")
                session.frames.arm()
                socket.send_fds(session.connection, [b"\0"], [inbound, theirs.fileno()])
                _, descriptors, _, _ = socket.recv_fds(session.connection, 1, 2)
                if len(descriptors) != 2:
                    raise HandshakeError(f"rank {session.peer} hung up while memory was shared")
            except OSError as error:
                given.close()
                raise HandshakeError(f"rank {session.peer} hung up while memory was shared: {error}") from error
            except BaseException:
                given.close()
                raise
        return replace(given, outbound=descriptors[0], peer_chunks=descriptors[1])


class _TryAgainError(Exception):
    def __init__(self, error: HandshakeError) -> None:
        super().__init__(str(error))
        self.error = error


def _in_vain(rank: int, missing: set[int], sent_away: Collection[str]) -> str:
    reasons = "; ".join(reason for reason in sent_away if reason)
    return f"rank {rank} waited in vain for ranks {sorted(missing)}" + (f"; turned away: {reasons}" if reasons else "")


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
