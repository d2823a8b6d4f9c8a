"""The engine that joins the two worlds: the messages between a replica's forward and backward ranks.

    go        backward → forward   before each step: its number, the position in the data, whether weights were sent
                                   before the first one; step 0 is the end
    weights   backward → forward   after each step: what the optimizer has changed
    input     forward → backward   the input of a part of the model for a microbatch
    linears   forward → backward   in *linears* mode, what each linear layer makes of a microbatch
    layer     forward → backward   in *layers* mode, what each layer makes of a microbatch

Nobody coordinates: a message moves when its receiver has posted, so that receives are the sender's credits. A turn is
one step, counted alike on both sides; it is the tags' round. What is sent before the first step has the turn 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.pipeline.native import ReceiveHandle, connected_engine, hand_over, rdma_module
from megatronapp.trainer.plugins.fbd.pending import LONG_SECONDS, SLICE_SECONDS, Kind, Pending, wait
from megatronapp.trainer.plugins.fbd.roles import Place, Role, Roles

if TYPE_CHECKING:
    from megatronapp import rdma

log = get_logger(__name__)

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 30 * 24 * 3600.0
"""For what waits for the next step: an evaluation or a checkpoint takes as long as it takes."""


class Go(NamedTuple):
    step: int
    consumed_samples: int
    """Before the first step; the forward world counts on by itself."""
    weights: int
    """Whether they were sent before the step, which is the first: 0 or 1."""

    def tensor(self) -> torch.Tensor:
        """int64 [3]"""
        return torch.tensor(self, dtype=torch.int64)


class Link:
    """This rank's, connected with the other role's ranks of its replica: its twins."""

    def __init__(
        self, roles: Roles, config: ParallelConfig, environment: Environment, store: Any, *, receive_bytes: int = 0
    ) -> None:
        """receive_bytes: of GPU memory that is received into at once. Raises TrainingError when a twin can't be
        reached, UsageError without the transport's wheel."""
        self.roles = roles
        self.place = roles.place(environment.rank)
        module = rdma_module()
        self._tag: Any = module.Tag
        self._error: type[Exception] = module.TransportError
        self._lost: Any = module.PeerLostError
        self._timed_out: type[Exception] = module.TransferTimeoutError
        self.twins = tuple(roles.of_replica(other(self.place.role), self.place.replica))
        ranks = [roles.rank(twin) for twin in self.twins]
        self._engine = connected_engine(
            config, environment, store, ranks, receive_pool_bytes=receive_bytes * len(ranks)
        )  # each twin gets an equal share
        self.turn = 0

    # ---- messages

    def begin_turn(self) -> None:
        self.turn = self._engine.begin_round()

    def send(
        self, tensor: torch.Tensor, twin: Place, kind: Kind, *, patience_seconds: float | None = None, **tag: int
    ) -> Pending:
        """A dense tensor, which must not be changed before it was waited for."""
        rank, name = self.roles.rank(twin), self._name(kind, self.turn, tag)
        handle = self._guarded(self._engine.isend, tensor, rank, name, deadline_seconds=patience_seconds)
        return Pending(handle=handle, kind=kind, twin=twin, twin_rank=rank, sends=True, of=tag)

    def receive(
        self,
        tensor: torch.Tensor,
        twin: Place,
        kind: Kind,
        *,
        turn: int | None = None,
        patience_seconds: float | None = None,
        **tag: int,
    ) -> Pending:
        """turn: in which it was sent, this one unless another is named."""
        rank, name = self.roles.rank(twin), self._name(kind, self.turn if turn is None else turn, tag)
        handle = self._guarded(self._engine.irecv, tensor, rank, name, deadline_seconds=patience_seconds)
        return Pending(handle=handle, kind=kind, twin=twin, twin_rank=rank, sends=False, of=tag)

    def wait_sent(self, pending: Pending) -> None:
        """Until the tensor may be changed."""
        self._guarded(self._wait, pending)

    def wait_received(self, pending: Pending) -> None:
        """On a GPU the current stream waits, on a CPU this thread."""
        if pending.handle.cuda:
            self._guarded(ReceiveHandle(pending.handle, self._engine, {}).wait)
        else:
            self._guarded(self._wait, pending)

    def wait_there(self, pending: Pending) -> None:
        """On the host, also for what a GPU's stream has to wait for, too; for as long as it takes."""
        while not self.comes_within(pending, SLICE_SECONDS):
            pass

    def comes_within(self, pending: Pending, seconds: float) -> bool:
        """Waits on the host."""
        come: bool = self._guarded(self._comes_within, pending, seconds)
        return come

    def hand_over(self) -> None:
        """Until the GPU has been given all that was sent: this thread may then stay in the driver for long."""
        self._guarded(hand_over, self._engine)

    def check(self) -> None:
        """Before anything that was received is used for good."""
        self._guarded(self._engine.check)
        self._engine.poll()

    def lost(self, patience_seconds: float) -> str:
        """Which twins are lost, as far as the engine knows it by then; "" for none."""
        until = time.monotonic() + patience_seconds
        while not (lost := self._engine.failed()) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return self._named(lost)

    def close(self) -> None:
        """All went well: what was sent has been received."""
        self._guarded(self._engine.close)

    def abort(self) -> None:
        """Does nothing after `close`."""
        self._engine.abort()
        self._engine.close(0)

    # ----

    def _name(self, kind: Kind, turn: int, fields: dict[str, int]) -> rdma.Tag:
        tag: rdma.Tag = self._tag(kind, round=turn, **fields)
        return tag

    def _wait(self, pending: Pending) -> None:
        wait(pending, self._timed_out, self._engine.check, self._tell_long)

    def _comes_within(self, pending: Pending, seconds: float) -> bool:
        ended = pending.done()
        try:
            self._engine.wait_any([pending.handle], seconds)
        except self._timed_out:
            if ended:
                raise
            self._engine.check()
            return False
        return True

    def _tell_long(self, pending: Pending) -> None:
        here = f"rank {self.roles.rank(self.place)} ({self.place})"
        log.warning("fbd_waits", rank=here, waits_for=str(pending), seconds=LONG_SECONDS)

    def _guarded(self, action: Any, *args: Any, **options: Any) -> Any:
        try:
            return action(*args, **options)
        except self._error as error:
            raise TrainingError(self._describe(error)) from error

    def _describe(self, error: Any) -> str:
        if not isinstance(error, self._lost):
            return f"a message between the forward and the backward ranks failed: {error}"
        # Who dies takes others along: the one that did not end because of another is among them.
        return self._named({error.rank: error.reason, **self._engine.failed()})

    def _named(self, lost: dict[int, str]) -> str:
        return "; ".join(f"rank {rank} ({self.roles.place(rank)}) is lost: {lost[rank]}" for rank in sorted(lost))


def other(role: Role) -> Role:
    return Role.BACKWARD if role is Role.FORWARD else Role.FORWARD


def twins_of(link: Link, *, stage: int) -> Sequence[Place]:
    """Of this rank's context rank, on a stage of the other role: by tensor rank."""
    return [twin for twin in link.twins if twin.stage == stage and twin.context == link.place.context]
