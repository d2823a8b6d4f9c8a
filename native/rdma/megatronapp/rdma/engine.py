"""The engine of one rank."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Sequence
from typing import cast

import torch

from megatronapp.rdma import _native, forks, keepalive, pending_send, tensors
from megatronapp.rdma._native import Direction, Status
from megatronapp.rdma.capabilities import local_capabilities
from megatronapp.rdma.config import Config
from megatronapp.rdma.errors import (
    EngineClosedError,
    LaneUnavailableError,
    PeerLostError,
    TransferTimeoutError,
    TransportError,
)
from megatronapp.rdma.handle import SLICE_SECONDS, Completion, Handle
from megatronapp.rdma.lanes import Route
from megatronapp.rdma.peer_connector import PeerConnector, PeerLink
from megatronapp.rdma.pending_send import PendingSend
from megatronapp.rdma.refusals import Refusals
from megatronapp.rdma.rendezvous import Directory, Listener, Store, open_store, own_address
from megatronapp.rdma.tag import Tag
from megatronapp.rdma.tensors import Spec


class Engine:
    """Sends and receives tensors between ranks in any order, by tag, without waiting on the host.

    All ranks name the same `job` and `epoch` (the attempt, counted up on restart) and share `store`: a torch store, or
    the path of a file that all of them reach. With a `secret` only those who know it can join; without one, whoever
    reads the store can. Methods may be called from any thread.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store | str | os.PathLike[str],
        *,
        job: str = "job",
        epoch: int = 0,
        secret: bytes | None = None,
        config: Config | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if secret == b"":
            raise ValueError("the job's secret is empty: anybody would know it")
        self.rank = rank
        self.world_size = world_size
        self.config = config or Config()
        self.native: _native.Engine = _native.Engine(
            spin_seconds=self.config.spin_seconds,
            heartbeat_seconds=self.config.heartbeat_seconds,
            dead_after_seconds=self.config.dead_after_seconds,
            checksum=self.config.checksum,
            chunk_bytes=self.config.chunk_bytes or 0,
            receive_pool_bytes=self.config.receive_pool_bytes,
            open_rounds=self.config.open_rounds,
            in_flight_bytes=self.config.in_flight_bytes or 0,
        )
        keepalive.give_back()
        self._directory = Directory(open_store(store, world_size), job, epoch)
        self._listener = Listener(own_address(self.config.address))
        self._secret = self._directory.secret(rank, secret, self.config.connect_timeout_seconds)
        self._directory.publish(rank, self._listener.endpoint)
        self._capabilities = local_capabilities(self.native, rank, self.config)
        self._peers: dict[int, PeerLink] = {}
        self._device = -1
        self._round = 0
        self.unfinished: set[Handle] = set()
        self._ended: dict[Handle, Completion] = {}
        self._arrived: dict[Handle, None] = {}
        self._aborted: str | None = None
        self._lock = threading.Lock()
        self._forked = False
        forks.watch(self)

    # ---- peers

    def connect(self, peers: Collection[int]) -> None:
        """Reach the peers, which must do the same for this rank; those reached already are left as they are.

        Raises TransferTimeoutError for one that does not come, HandshakeError for one that is somebody else, and
        LaneUnavailableError when a required lane is not there.
        """
        self._usable()
        new = {peer for peer in peers if peer not in self._peers and peer != self.rank}
        if beyond := [peer for peer in new if not 0 <= peer < self.world_size]:
            raise ValueError(f"no ranks {beyond} in a world of {self.world_size}")
        peer_connector = PeerConnector(self._capabilities, self._directory, self._listener, self._secret)
        for link in peer_connector.connect_peers(new, self.config.connect_timeout_seconds):
            self._attach(link)

    def _attach(self, link: PeerLink) -> None:
        gpu = link.route.cuda is not None and self._capabilities.gpu is not None
        if gpu:
            self._device = torch.cuda.current_device()
            torch.cuda.synchronize()  # makes the device's context this thread's, which the lane then takes
        over_ucx = link.route.cpu == "ucx"
        address = bytes.fromhex(link.theirs.ucx_address) if over_ucx else b""
        try:
            self.native.attach(
                rank=link.peer,
                socket=link.connection.fileno(),
                inbound=link.shared.inbound,
                outbound=link.shared.outbound,
                cuda_ipc=link.route.cuda == "cuda_ipc",
                own_chunks=link.shared.own_chunks,
                peer_chunks=link.shared.peer_chunks,
                ucx_address=address,
                gpu=gpu,
            )
        except (OSError, RuntimeError) as error:
            link.connection.close()
            raise LaneUnavailableError(f"lane {link.route} to rank {link.peer} can't be opened: {error}") from error
        finally:
            link.shared.close()
        self._peers[link.peer] = link

    def lanes(self) -> dict[int, Route]:
        """How tensors travel to and from each peer, and why not faster."""
        return {peer: link.route for peer, link in self._peers.items()}

    # ---- messages

    def isend(
        self,
        tensor: torch.Tensor,
        dst: int,
        tag: Tag,
        *,
        stream: torch.cuda.Stream | None = None,
        priority: int = 0,
        deadline_seconds: float | None = None,
    ) -> Handle:
        """Send a dense contiguous tensor, of any dtype and shape. It must not be changed until the handle is done.

        GPU memory is read after what `stream` (default: the current one) holds now. Of matched sends to one peer that
        of the greater `priority` goes first. Raises ValueError for a tensor that can't be moved, TagError for a used
        tag, PeerLostError when the peer is gone, LaneUnavailableError while `stream` is captured into a CUDA graph.
        """
        return self._post(False, tensor, dst, self.rank, tag, stream, deadline_seconds, priority)

    def irecv(
        self,
        out: torch.Tensor | Spec,
        src: int,
        tag: Tag,
        *,
        stream: torch.cuda.Stream | None = None,
        deadline_seconds: float | None = None,
    ) -> Handle:
        """Receive into a tensor, or into memory that the engine brings (then `handle.tensor`).

        Dtype and shape must be those of the sender's tensor; either may be on a GPU and the other not. GPU memory is
        written after what `stream` (default: the current one) holds now, when the message is through or a stream
        waits for it; it is received into memory of the engine's own, and copied. Raises as `isend`, and
        BackpressureError when 1024 receives of GPU memory from this peer are open already.
        """
        tensor = out if isinstance(out, torch.Tensor) else tensors.allocate(out)
        return self._post(True, tensor, src, src, tag, stream, deadline_seconds)

    def _post(
        self,
        receives: bool,
        tensor: torch.Tensor,
        peer: int,
        source: int,
        tag: Tag,
        stream: torch.cuda.Stream | None,
        deadline_seconds: float | None,
        priority: int = 0,
    ) -> Handle:
        self._usable()
        seconds = self.config.deadline_seconds if deadline_seconds is None else deadline_seconds
        if seconds <= 0:
            raise ValueError(f"deadline_seconds {seconds:g} must be positive: it ends the connection")
        pointer = None if stream is None else stream.cuda_stream
        try:
            handle = self.native.post(
                Handle,
                self,
                self.unfinished,
                receives,
                peer,
                source,
                tag,
                tensor,
                pointer,
                self._device,
                seconds,
                priority,
            )
        except (IndexError, ValueError, RuntimeError, BufferError) as error:
            raise self._refusals().of(error, peer, source, tag, tensor) from None
        if handle is None:
            raise self._refusals().unmovable(tensor, peer)
        if handle.failed and handle.status in (Status.PEER_LOST, Status.ABORTED):
            self.mark_consumed(handle)
            handle.raise_for_status()
        return handle

    def _refusals(self) -> Refusals:
        return Refusals(self.rank, self._device, self.lanes())

    # ---- rounds

    @property
    def round(self) -> int:
        """The newest, as `begin_round` counts; 0 before the first."""
        return self._round

    def begin_round(self) -> int:
        """Count one on, and return the number.

        All that use this engine take their tags' rounds from this one counter, and all ranks count alike.
        """
        with self._lock:
            self._round += 1
            return self._round

    # ---- what has ended

    def poll(self) -> list[Completion]:
        """Everything that has ended since the last call and was not waited for."""
        self._reap()
        with self._lock:
            completions = list(self._ended.values())
            self._ended.clear()
        return completions

    def arrived(
        self, kind: int | None = None, chunk: int | None = None, *, peer: int | None = None, in_round: int | None = None
    ) -> list[Handle]:
        """What was received well and that nobody has waited for yet, in the order in which it came."""
        self._reap()
        return [
            handle
            for handle in list(self._arrived)
            if kind in (None, handle.tag.kind)
            and chunk in (None, handle.tag.chunk)
            and peer in (None, handle.peer)
            and in_round in (None, handle.tag.round)
        ]

    def probe(
        self,
        kind: int | None = None,
        chunk: int | None = None,
        *,
        peer: int | None = None,
        in_round: int | None = None,
        timeout: float = 0.0,
    ) -> list[PendingSend]:
        """What peers have posted to send here, and for which no receive was posted, in the order in which it came.

        With a `timeout` this thread moves messages until there is something, or the time is over.
        """
        self._usable()
        return pending_send.probe(self.native, peer, kind, chunk, in_round, timeout)

    def wait_any(self, handles: Collection[Handle], timeout: float | None = None) -> Handle:
        """Block until one of them has ended, and return the one that ended first; this thread moves messages meanwhile.

        Raises the error with which it ended, and TransferTimeoutError when none has within `timeout` seconds.
        """
        self._usable()
        waited = list(handles)
        if not waited:
            raise ValueError("no handles to wait for")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (
            place := self.native.wait_any(waited, max(0.0, min(SLICE_SECONDS, deadline - time.monotonic())))
        ) is None:
            if time.monotonic() >= deadline:
                raise TransferTimeoutError(f"none of {len(waited)} messages has ended after {timeout:g} s")
        self.mark_consumed(waited[place])
        waited[place].raise_for_status()
        return waited[place]

    def flush(self, timeout: float = 1.0) -> bool:
        """Block until all sends of GPU memory are given to the GPU, for which their receivers must be posted.

        Returns whether they are: then no host is needed to end what a stream waits for.

        For programs that launch far ahead of the GPU: behind a waiting stream the driver's queue fills up, and then it
        takes no call from any thread, this engine's neither. This thread moves messages meanwhile.
        """
        self._usable()
        return self.native.flush(timeout)

    def fileno(self) -> int:
        """Readable while `poll` has something to tell: for select and epoll."""
        return self.native.descriptor()

    def _reap(self) -> None:
        self._usable()
        ended = self.native.drain()
        with self._lock:
            for handle in ended:
                try:
                    self.unfinished.remove(handle)
                except KeyError:  # somebody waited for it
                    continue
                if handle.direction == Direction.RECEIVE and handle.good and not handle.seen:
                    self._arrived[handle] = None
                keepalive.keep_while_in_use(handle)
                self._ended[handle] = Completion(handle.tag, handle, handle.status, handle.nbytes, handle.done_ns)

    def mark_consumed(self, handle: Handle) -> None:
        """The handle was waited for."""
        with self._lock:
            self.unfinished.discard(handle)
            self._ended.pop(handle, None)
            self._arrived.pop(handle, None)
        keepalive.keep_while_in_use(handle)

    def mark_stream_waited(self, handle: Handle) -> None:
        """A stream waits for the handle, which may be there already."""
        self._arrived.pop(handle, None)

    def in_flight(self) -> dict[int, int]:
        """By peer, the bytes of sends that are under way to it just now; what waits for room is not among them.

        Counted where `Config.in_flight_bytes` limits them; 0 for all peers where it does not.
        """
        self._usable()
        return self.native.in_flight()

    # ---- failure and end

    def failed(self) -> dict[int, str]:
        """The lost ranks and why. A peer that closed its engine when nothing was open is not among them."""
        self._not_forked()
        return self.native.failed()

    def check(self) -> None:
        """Raise what went wrong so far, if anything did: call it before results of waiting streams are used for good.

        Raises EngineClosedError after `abort`, PeerLostError for a lost peer.
        """
        self._usable()
        keepalive.give_back()
        for rank, reason in self.failed().items():
            raise PeerLostError(rank, reason)

    def abort(self, reason: str = "aborted") -> None:
        """End every message now, on all threads and streams; nothing can be sent afterwards. Does nothing in a fork."""
        if self._forked:
            return
        self._aborted = reason
        self.native.abort(reason)

    def close(self, timeout: float = 30.0) -> None:
        """Wait for open sends and for the peers to have read them, and end. Receives that are open end with an error.

        Raises TransportError when the peers have not read everything in time. In a fork, whose engine this is not: does
        nothing.
        """
        if self._forked or self._aborted == _CLOSED:
            return
        complete = self._aborted is not None or self.native.close(timeout)
        if self._aborted is not None:
            self.native.close(0)
        self._aborted = _CLOSED
        self._forget_messages()
        self._listener.close()
        for link in self._peers.values():
            link.connection.close()
        if not complete:
            raise TransportError(f"not everything was sent or read within {timeout:g} s")

    def _forget_messages(self) -> None:
        with self._lock:
            for handle in self.unfinished:
                keepalive.keep_while_in_use(handle)
            self.unfinished.clear()
        keepalive.give_back()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} failed: {error}")
        self.close()

    def _not_forked(self) -> None:
        if self._forked:
            raise EngineClosedError(forks.FORKED)

    def _usable(self) -> None:
        self._not_forked()
        if self._aborted is not None:
            raise EngineClosedError(self._aborted)

    def leave_to_parent(self) -> None:
        """In a fork: sockets held here would hide the parent's death from its peers."""
        self._forked = True
        self.native = cast(_native.Engine, forks.ForkedEngine())
        self._listener.close()
        for link in self._peers.values():
            link.connection.close()


_CLOSED = "the engine is closed"


def neighbours(ranks: Sequence[int], rank: int) -> list[int]:
    """The ranks before and after one in a ring, such as a pipeline's stages."""
    place = list(ranks).index(rank)
    around = {ranks[place - 1], ranks[(place + 1) % len(ranks)]}
    return sorted(around - {rank})
