"""Results on their way out of the rank: copied from the device without waiting for it, packed, written to the ring.

Values leave in float32; the agent quantises them, whose time is not the training's. A ring that nobody reads is
overwritten, a frame that is too large for it is left out and counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import Frame, Section, pack
from megatronapp.core.scope.operations import When
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Result, to_frame
from megatronapp.trainer.agent.layout import FRAME_TAP
from megatronapp.trainer.plugins.scope.reduce import Reduced

MAX_WAITING = 4096
"""Results that the device has not brought yet; more of them are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a frame is of."""

    tap: int
    step: int
    microbatch: int | None
    layer: int | None
    extents: Sequence[int]
    """Of the site's axes, over all shards."""
    origins: Sequence[int]
    request: str = ""
    """The generation; empty: a training's step."""
    when: When | None = None
    inspect: Callable[[Result], None] | None = None
    """Is shown the result, on the host."""


@dataclass(slots=True)
class _Waiting:
    address: Address
    reduced: Reduced
    copies: list[torch.Tensor]
    event: torch.cuda.Event | None


class FrameQueue:
    """Of one rank. For the training thread, or autograd's while that one waits."""

    def __init__(self, write: Callable[[bytes, bytes], None]) -> None:
        self._write = write
        self._waiting: list[_Waiting] = []
        self._sequences: dict[int, int] = {}
        self.dropped = 0
        """Frames left out here."""

    def put(self, address: Address, reduced: Reduced) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        on_device = any(tensor.is_cuda for tensor in reduced.tensors)
        copies = [_copied(tensor) for tensor in reduced.tensors]
        event = None
        if on_device:
            event = torch.cuda.Event()
            event.record()
        self._waiting.append(_Waiting(address, reduced, copies, event))

    def flush(self, *, wait: bool = False) -> None:
        """Write what the device has brought; `wait`: all of it."""
        left = []
        for waiting in self._waiting:
            if waiting.event is not None and not wait and not waiting.event.query():
                left.append(waiting)
                continue
            if waiting.event is not None:
                waiting.event.synchronize()
            self._write_one(waiting)
        self._waiting = left

    def _write_one(self, waiting: _Waiting) -> None:
        address = waiting.address
        try:
            result = waiting.reduced.finish([copy.numpy() for copy in waiting.copies])
            if address.inspect is not None:
                address.inspect(result)
            if address.when is not None and not holds(address.when, result):
                return
            number = self._sequences[address.tap] = self._sequences.get(address.tap, 0) + 1
            self._write(FRAME_TAP.pack(address.tap), pack(_addressed(to_frame(result, "f32"), address, number)))
        except (DataError, ValueError, LookupError):  # too large, or of more dims than a frame has
            self.dropped += 1


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """On the host, as soon as the device has come there; of a tensor of the host's own memory itself."""
    if not tensor.is_cuda:
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def _addressed(frame: Frame, address: Address, number: int) -> Frame:
    sections = {
        **frame.sections,
        Section.EXTENT: np.array(address.extents, "<u4").tobytes(),
        Section.ORIGIN: np.array(address.origins, "<u4").tobytes(),
    }
    if address.request:
        sections[Section.REQUEST] = address.request.encode(errors="replace")
    return replace(
        frame,
        subscription=address.tap,
        sequence=number,
        captured_unix_us=time.time_ns() // 1000,
        step=address.step,
        microbatch=address.microbatch,
        layer=address.layer,
        sections=sections,
    )


def holds(when: When, result: Result) -> bool:
    """Of values; of other results it is the gateway's to say."""
    if not isinstance(result, Values):
        return True
    known = result.array[~result.absent]
    if when.statistic == "nonfinite":
        return not bool(np.isfinite(known).all())
    known = known[np.isfinite(known)].astype(np.float64)
    if not known.size:
        return False
    value = {
        "absmax": lambda: float(np.abs(known).max()),
        "max": lambda: float(known.max()),
        "min": lambda: float(known.min()),
        "mean": lambda: float(known.mean()),
        "std": lambda: float(known.std()),
    }.get(when.statistic, lambda: math.nan)()
    return value > when.bound if when.sign == ">" else value < when.bound
