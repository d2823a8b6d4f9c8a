"""Messages over the native transport (`--p2p-transport native`, the wheel megatronapp-rdma), by tag and in any order.

A tag is the message's name and the number of the pass, which all ranks count alike and all who use the engine share:
with it, names may come again in every batch of an evaluation.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.pipeline.late_sends import LateSends
from megatronapp.trainer.pipeline.port import Handle, Message, Post
from megatronapp.trainer.worlds import World

if TYPE_CHECKING:
    from megatronapp import rdma

log = get_logger(__name__)

WHEEL = "megatronapp.rdma"
SLOWER_THAN_SHM = ("tcp", "ucx")
"""Taken within a host only where nothing else may be."""
LOST_SECONDS = 1.0
"""After which a rank that a collective has failed for is known to be lost, or is not."""


class SendHandle:
    """The engine keeps what is sent until it is read: nothing has to wait, not even for the memory to be given up."""

    def __init__(self, handle: rdma.Handle) -> None:
        self.is_completed = handle.is_completed

    def wait(self) -> None:
        pass


class LateHandle:
    """Of a send that is handed over later."""

    def __init__(self, sent: Future[SendHandle]) -> None:
        self._sent = sent

    def is_completed(self) -> bool:
        return self._sent.done() and self._sent.result().is_completed()

    def wait(self) -> None:
        pass


class ReceiveHandle:
    """On a GPU the current stream waits, on a CPU the host.

    megatron-core's schedules launch as far ahead as the driver's queue is long, so no call of this host may be needed
    to end what the stream waits for: the GPU is given all earlier sends first, and for what comes through host memory
    the host waits.
    """

    def __init__(self, handle: rdma.Handle, engine: rdma.Engine, unfinished: dict[int, rdma.Handle]) -> None:
        self._handle = handle
        self._engine = engine
        self._unfinished = unfinished
        self.is_completed = handle.is_completed

    def wait(self) -> None:
        if not self._handle.cuda or self._engine.lanes()[self._handle.peer].cuda != "cuda_ipc":
            self._handle.wait()
        else:
            if not self._handle.done():
                self._engine.flush()
            self._handle.wait_stream()
        if self._handle.done():
            self._unfinished.pop(self._handle.id, None)


def hand_over(engine: rdma.Engine) -> None:
    """Return when the GPU has been given all that was sent. Raises what went wrong with a message, or with a peer.

    What follows may keep this thread in the driver until a collective ends (`.item()`, the first use of a kernel), and
    the engine's with it: were a send held back by then, its receiver would never come to the collective.
    """
    while not engine.flush():
        engine.check()


class NativeTransport:
    """Over an engine that is connected with the neighbours."""

    ordered = False

    def __init__(self, engine: rdma.Engine) -> None:
        module = rdma_module()
        self.engine = engine
        self.errors: tuple[type[Exception], ...] = (module.TransportError,)
        self._timed_out: type[Exception] = module.TransferTimeoutError
        self._tag: Any = module.Tag
        self._receives: dict[int, rdma.Handle] = {}  # not known to have ended; what has ended must not be kept
        self.late_seconds: Callable[[Message], float] = _on_time
        """How much later than it is posted a message is handed over: a fault's, or a benchmark's."""
        self._late: LateSends[SendHandle] = LateSends()

    def begin(self) -> None:
        self.engine.begin_round()

    def end(self) -> None:
        self._late.wait()
        hand_over(self.engine)
        while self._receives:
            self._receives.popitem()[1].wait()
        self._take_ended()
        self.engine.check()

    def wait_any(self, timeout_seconds: float) -> None:
        """Return when a receive has ended, or after the time; this thread moves messages meanwhile."""
        try:
            ended = self.engine.wait_any(self._receives.values(), timeout_seconds)
        except self._timed_out:
            return
        self._receives.pop(ended.id, None)

    def in_flight(self) -> tuple[int, int]:
        """Bytes under way to the peer that has most of them just now, and how many may be to one; 0, 0: any number."""
        return max(self.engine.in_flight().values(), default=0), self.engine.config.in_flight_bytes or 0

    def lost(self, patience_seconds: float = LOST_SECONDS) -> str:
        """Which ranks are lost, as far as the engine knows it by then; "" for none."""
        until = time.monotonic() + patience_seconds
        while not (failed := self.engine.failed()) and time.monotonic() < until:
            time.sleep(0.01)
        return "; ".join(f"rank {rank} is lost: {reason}" for rank, reason in failed.items())

    def close(self) -> None:
        self.engine.close()

    def post(self, posts: Sequence[Post], *, batch: bool) -> list[Handle]:
        # Receives first: a sender that comes now need not wait.
        receives = [None if post.message.sends else self._receive(post) for post in posts]
        if None in receives:
            self._take_ended()  # often enough
        return [self._send(post) if made is None else made for post, made in zip(posts, receives, strict=True)]

    def tag(self, message: Message) -> rdma.Tag:
        direction, microbatch, chunk, part = message.id
        tag: rdma.Tag = self._tag(direction, chunk=chunk, microbatch=microbatch, round=self.engine.round, slot=part)
        return tag

    def _send(self, post: Post) -> Handle:
        tensor, peer, tag = post.tensor.contiguous(), post.message.peer, self.tag(post.message)
        seconds = self.late_seconds(post.message)
        if not seconds:
            return SendHandle(self.engine.isend(tensor, peer, tag, priority=post.priority))
        kept = tensor.detach()  # megatron-core takes an output's memory away once it was posted

        def send_now() -> SendHandle:
            return SendHandle(self.engine.isend(kept, peer, tag, priority=post.priority))

        if not tensor.is_cuda:
            return LateHandle(self._late.add(seconds, send_now))
        made = torch.cuda.current_stream().record_event()
        # The current stream may by then hold what waits for this very message.
        aside = torch.cuda.Stream()

        def send() -> SendHandle:
            with torch.cuda.stream(aside):
                return send_now()

        def is_made() -> bool:
            with torch.cuda.device(kept.device):
                return bool(made.query())

        return LateHandle(self._late.add(seconds, send, is_made))

    def _receive(self, post: Post) -> ReceiveHandle:
        handle = self.engine.irecv(post.tensor, post.message.peer, self.tag(post.message))
        self._receives[handle.id] = handle
        return ReceiveHandle(handle, self.engine, self._receives)

    def _take_ended(self) -> None:
        for completion in self.engine.poll():
            completion.handle.raise_for_status()
            self._receives.pop(completion.handle.id, None)


def _on_time(_: Message) -> float:
    return 0.0


def rdma_module() -> Any:
    """Raises UsageError without the wheel."""
    try:
        return import_module(WHEEL)
    except ImportError as error:
        raise UsageError("--p2p-transport native needs the wheel: pip install megatronapp-rdma") from error


def open_engine(
    config: ParallelConfig,
    environment: Environment,
    world: World,
    group: dist.ProcessGroup,
    store: Any,
    lane: str = "",
    in_flight_bytes: int | None = None,
) -> rdma.Engine:
    """This rank's engine, connected with its neighbours in the pipeline's `group`, over `lane` where one is named.
    It moves so many bytes to one of them at once (rdma.Config).

    Raises UsageError without the wheel, and TrainingError when a neighbour can't be reached.
    """
    pipeline = [world.ranks[rank] for rank in dist.get_process_group_ranks(group)]
    return connected_engine(
        config,
        environment,
        world.store(store),
        rdma_module().neighbours(pipeline, environment.rank),
        lane,
        in_flight_bytes=in_flight_bytes,
    )


def connected_engine(
    config: ParallelConfig,
    environment: Environment,
    store: Any,
    peers: Sequence[int],
    lane: str = "",
    *,
    receive_pool_bytes: int = 0,
    in_flight_bytes: int | None = None,
) -> rdma.Engine:
    """An engine that is connected with `peers`, torchrun's ranks; it keeps so much GPU memory to receive into, or
    what it keeps by default where that is more. Raises as `open_engine`."""
    module = rdma_module()
    try:
        settings = module.flags.settings(
            rank=environment.rank,
            workload=config.workload,
            num_gpus=config.num_gpus,
            multi_node=config.multi_node,
            node_ips=config.node_ips,
            ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", environment.world_size)),
            world_size=environment.world_size,
        )
        engine: rdma.Engine = module.Engine(
            environment.rank,
            environment.world_size,
            store,
            job=environment.job,
            epoch=environment.attempt,
            secret=_secret(environment, store),
            config=module.Config(
                deadline_seconds=config.distributed_timeout_minutes * 60,
                require=(lane,) if lane else (),
                receive_pool_bytes=max(receive_pool_bytes, module.Config.receive_pool_bytes),
                in_flight_bytes=in_flight_bytes,
                **({"lanes": (lane,)} if lane in SLOWER_THAN_SHM else {}),
                **settings,
            ),
        )
        engine.connect(peers)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except module.TransportError as error:
        raise TrainingError(
            f"the native transport can't reach its peers: {error}{_addresses(error, config)}"
        ) from error
    log.info("native_transport", lanes={peer: str(route) for peer, route in engine.lanes().items()})
    return engine


def _addresses(error: Exception, config: ParallelConfig) -> str:
    """What to change where an address may be at fault: other faults have errors of their own."""
    module = rdma_module()
    if type(error) not in (module.TransportError, module.TransferTimeoutError):
        return ""
    if config.node_ips:
        return "; --node-ips must name, for each rank, an address of its own host that the others reach: correct it"
    return "; where the address that was found is not reachable, name one for each rank with --node-ips"


def _secret(environment: Environment, store: Any) -> bytes:
    """Of whoever asks first: rank 0, from whom the engine would have it, may be in another world."""
    secret: bytes = store.compare_set(f"rdma/secret/{environment.attempt}", "", secrets.token_hex(32))
    return secret
