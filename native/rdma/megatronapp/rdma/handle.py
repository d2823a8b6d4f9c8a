"""A message on its way."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch

from megatronapp.rdma import _native, tensors
from megatronapp.rdma._native import Direction, Status
from megatronapp.rdma.errors import (
    BackpressureError,
    CancelledError,
    CorruptDataError,
    EngineClosedError,
    LaneUnavailableError,
    PeerLostError,
    TransferTimeoutError,
    TransportError,
)
from megatronapp.rdma.tag import Tag

SLICE_SECONDS = 0.5  # a wait looks for signals (Ctrl-C) so often
ENDED_WELL = 1  # and nobody else was told


class Owner(Protocol):
    """What a handle asks of the engine that made it."""

    native: _native.Engine
    unfinished: set[Handle]

    def mark_consumed(self, handle: Handle) -> None: ...

    def mark_stream_waited(self, handle: Handle) -> None: ...


class Handle(_native.Message):
    """One `isend` or `irecv`. Wait for each, or `poll` the engine: until then its tensor is kept alive."""

    __slots__ = ()

    engine: Owner
    tag: Tag
    is_completed = _native.Message.done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended; this thread moves messages meanwhile. Returns True, as torch's Work does.

        Raises the error with which it ended. Raises TransferTimeoutError after `timeout` seconds; the message stays
        under way and can be waited for again.
        """
        engine = self.engine
        wait, unfinished = engine.native.wait, engine.unfinished
        if timeout is None:
            while not (ended := wait(self, SLICE_SECONDS, unfinished)):
                pass
        else:
            deadline = time.monotonic() + timeout
            while not (ended := wait(self, max(0.0, min(SLICE_SECONDS, deadline - time.monotonic())), unfinished)):
                if time.monotonic() >= deadline:
                    raise TransferTimeoutError(f"{self}: not there after {timeout} s")
        if ended != ENDED_WELL:
            engine.mark_consumed(self)
            self.raise_for_status()
        return True

    def wait_stream(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let `stream` (default: the current one) go on only when the message is through; the host does not wait.

        Do not launch hundreds of operations behind it before `engine.flush` or the message's end. When the peer is lost
        meanwhile the stream is let go as well: call `engine.check()` before its results are used. For a tensor of the
        CPU, which has no streams, the host waits. Raises LaneUnavailableError while the stream is being captured into a
        CUDA graph.
        """
        if not self.cuda:
            self.wait()
            return
        handle = tensors.current_stream(self.tensor.get_device()) if stream is None else stream.cuda_stream
        try:
            self.engine.native.wait_stream(self, handle)
        except BufferError as error:
            raise BackpressureError(f"{self}: {error}") from None
        except RuntimeError as error:
            raise LaneUnavailableError(f"{self}: {error}") from None
        self.seen = True
        self.engine.mark_stream_waited(self)

    def cancel(self, timeout: float = 10.0) -> bool:
        """Take it back; whether that is done. It has then ended, with CancelledError, and its tag is free.

        False: too late, it ends as it would have. What is not matched can be taken back, and what is not moving yet;
        over `shm` and `tcp` also what has been moved in part. Of a receive the peer's engine decides, for whose answer
        this thread waits: raises TransferTimeoutError when there is none in time.
        """
        taken_back = self.engine.native.cancel(self, timeout)
        if taken_back is None:
            raise TransferTimeoutError(f"{self}: rank {self.peer} has not answered its cancelling within {timeout:g} s")
        return taken_back

    def error(self) -> TransportError | None:
        """With what it ended; None while it is under way and when it ended well."""
        if not self.failed:
            return None
        status = self.status
        if status == Status.PEER_LOST:
            return PeerLostError(self.peer, self.reason)
        if status == Status.TIMED_OUT:
            return TransferTimeoutError(f"{self}: not matched by its deadline")
        if status == Status.CANCELLED:
            return CancelledError(f"{self}: cancelled")
        if status == Status.CORRUPT:
            return CorruptDataError(f"{self}: {self.reason}")
        if status == Status.MISMATCH:
            return self._mismatch()
        return EngineClosedError(f"{self}: {self.reason}")

    def raise_for_status(self) -> None:
        error = self.error()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and with it the tensor

    def _mismatch(self) -> TransportError:
        mine, other = tensors.text(self.described), tensors.text(self.other)
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
