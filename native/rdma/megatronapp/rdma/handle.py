"""A message on its way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from megatronapp.rdma import tensors
from megatronapp.rdma._native import Direction, Operation, Status
from megatronapp.rdma.errors import (
    CancelledError,
    CorruptDataError,
    EngineClosedError,
    PeerLostError,
    TransferTimeoutError,
    TransportError,
)
from megatronapp.rdma.tag import Tag

if TYPE_CHECKING:
    from megatronapp.rdma.engine import Engine

SLICE_SECONDS = 0.5  # a wait looks for signals (Ctrl-C) so often


class Handle:
    """One `isend` or `irecv`. Wait for each, or `poll` the engine: until then its tensor is kept alive."""

    __slots__ = ("_described", "_engine", "_memory", "_operation", "direction", "id", "peer", "seen", "tag", "tensor")

    def __init__(
        self,
        engine: Engine,
        operation: Operation,
        direction: Direction,
        peer: int,
        tag: Tag,
        tensor: torch.Tensor,
        described: tensors.Described,
    ) -> None:
        self._engine = engine
        self._operation = operation
        self._described = described
        self.id = operation.id
        self.direction = direction
        self.peer = peer
        self.tag = tag
        self.tensor = tensor.detach() if tensor.requires_grad else tensor
        self._memory = tensor.untyped_storage()
        """Kept for itself: the program may give the tensor other memory meanwhile."""
        self.seen = False
        """A stream waits for it: it is not news any more when it arrives."""

    @property
    def nbytes(self) -> int:
        return self._described.bytes

    @property
    def done_ns(self) -> int:
        """When it ended, on the monotonic clock; 0 before."""
        return self._operation.done_ns

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._operation.pending

    is_completed = done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended; this thread moves messages meanwhile. Returns True, as torch's Work does.

        Raises the error with which it ended. Raises TransferTimeoutError after `timeout` seconds; the message stays
        under way and can be waited for again.
        """
        operation = self._operation
        if timeout is None:
            while not self._engine.native.wait(operation, SLICE_SECONDS):
                pass
        else:
            deadline = time.monotonic() + timeout
            while not self._engine.native.wait(operation, max(0.0, min(SLICE_SECONDS, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise TransferTimeoutError(f"{self}: not there after {timeout} s")
        self._engine.taken(self)
        self.raise_for_status()
        return True

    def wait_stream(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let `stream` (default: the current one) go on only when the message is through; the host does not wait.

        When the peer is lost meanwhile the stream is let go as well: call `engine.check()` before its results are
        used. Of host memory the host waits.
        """
        if self._described.cuda:
            handle = tensors.current_stream(self.tensor.get_device()) if stream is None else stream.cuda_stream
            if self._engine.native.wait_stream(self._operation, handle):
                self.seen = True
                self._engine.not_new(self)
                return
        self.wait()

    def cancel(self) -> None:
        """Take it back if the peer has not matched it yet: it then ends with CancelledError, else as it would have."""
        self._engine.native.cancel(self._operation)

    def error(self) -> TransportError | None:
        """With what it ended; None while it is under way and when it ended well."""
        operation = self._operation
        if operation.pending or operation.good:
            return None
        status = operation.status
        if status == Status.PEER_LOST:
            return PeerLostError(self.peer, operation.reason)
        if status == Status.TIMED_OUT:
            return TransferTimeoutError(f"{self}: not matched by its deadline")
        if status == Status.CANCELLED:
            return CancelledError(f"{self}: cancelled")
        if status == Status.CORRUPT:
            return CorruptDataError(f"{self}: {operation.reason}")
        if status == Status.MISMATCH:
            return self._mismatch()
        return EngineClosedError(f"{self}: {operation.reason}")

    def raise_for_status(self) -> None:
        if not self._operation.good and (error := self.error()) is not None:
            raise error

    def _mismatch(self) -> TransportError:
        address_less = self._described[2:] + self._described[1:2]
        mine, other = tensors.text(address_less), tensors.text(self._operation.other)
        peer = f"rank {self.peer}"
        if self.direction == Direction.SEND:
            return tensors.mismatch(str(self.tag), "this rank", mine, peer, other)
        return tensors.mismatch(str(self.tag), peer, other, "this rank", mine)

    def __str__(self) -> str:
        way = "to" if self.direction == Direction.SEND else "from"
        return f"message {way} rank {self.peer} with {self.tag}"


class Completion(NamedTuple):
    """An operation that has ended, told once."""

    tag: Tag
    handle: Handle
    status: Status
    nbytes: int
    t_ns: int
