"""Results on their way out of the rank: gathered on the device, copied from there at once without waiting for it,
packed, written to the ring.

Values leave in float32; the agent quantises them, whose time is not the training's. What is too large is left out,
counted and told of.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import MAX_SHARD_BYTES, Section, Stamp, addressed, stamped
from megatronapp.core.scope.operations import When
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Result
from megatronapp.trainer.plugins.scope.finished import Finished
from megatronapp.trainer.plugins.scope.outlet import MAX_WAITING_BYTES, Outlet
from megatronapp.trainer.plugins.scope.reduced import Reduced, completed

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_WAITING = 4096
"""Results that the device has not brought yet; more of them are left out."""
MAX_GATHERED_BYTES = 32 << 20
"""On the device; then they are copied before the step ends."""


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
    inspect: Callable[[Finished], None] | None = None
    """Is shown the result, on the host."""
    spell: Callable[[Result], Mapping[Section, bytes]] | None = None
    """What goes with the frame."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Results that were copied together."""

    results: Sequence[tuple[Address, Reduced]]
    """Several taps may show the same one, which is copied and finished once."""
    arrays: Mapping[int, Sequence[npt.NDArray[Any]]]
    """Of each, by its identity; there when `event` has happened."""
    event: torch.cuda.Event | None


class FrameQueue:
    """Of one rank. For the training thread, or autograd's while that one waits."""

    def __init__(self, write: Callable[[bytes, Buffer], None]) -> None:
        self._outlet = Outlet(write)
        self._gathered: list[tuple[Address, Reduced]] = []
        self._gathered_bytes = 0
        self._copied: deque[_Batch] = deque()
        self._sequences: dict[int, int] = {}
        self.written = 0
        """Frames handed over."""
        self.dropped = 0
        """Frames left out here."""
        self.left_out: list[tuple[Address, str]] = []
        """Of those what there was no room for, and why; whoever tells of it clears it."""

    def put(self, address: Address, reduced: Reduced) -> None:
        if len(self._gathered) + sum(len(batch.results) for batch in self._copied) >= MAX_WAITING:
            self._leave_out(address, f"more than {MAX_WAITING} pictures wait for the device; show fewer layers")
            return
        self._gathered.append((address, reduced))
        self._gathered_bytes += reduced.nbytes
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self._copy()

    def forget(self) -> None:
        """What was gathered since the last copy."""
        self._gathered, self._gathered_bytes = [], 0

    def flush(self, *, wait: bool = False) -> None:
        """At the end of a step: copy what was gathered, and write what the device has brought; `wait`: all of it."""
        self._copy()
        while self._copied:
            event = self._copied[0].event
            if event is not None and not wait and not event.query():
                break
            if event is not None:
                event.synchronize()
            self._line_up_all(self._copied.popleft())
        try:
            self._outlet.flush(wait=wait)
        except ValueError:  # no ring, or a smaller one
            self.dropped += 1

    def _copy(self) -> None:
        if not self._gathered:
            return
        results, self._gathered, self._gathered_bytes = self._gathered, [], 0
        different = {id(reduced): reduced for _, reduced in results}
        done = completed(list(different.values()))
        arrays, event = _on_host(done.tensors)
        self._copied.append(_Batch(results, dict(zip(different, done.of(arrays), strict=True)), event))

    def _line_up_all(self, batch: _Batch) -> None:
        several: dict[int, Finished] = {}
        for address, reduced in batch.results:
            try:
                finished = several.get(id(reduced))
                if finished is None:
                    finished = several[id(reduced)] = Finished(reduced.finish(batch.arrays[id(reduced)]))
                self._line_up(address, finished)
            except (DataError, ValueError, LookupError):  # of more dims than a frame has
                self.dropped += 1

    def _line_up(self, address: Address, finished: Finished) -> None:
        if address.inspect is not None:
            address.inspect(finished)
        if address.when is not None and not holds(address.when, finished.result):
            return
        number = self._sequences[address.tap] = self._sequences.get(address.tap, 0) + 1
        self._put(address, _head(address, number, finished), finished.frame.payload)

    def _put(self, address: Address, head: bytes, payload: bytes | memoryview) -> None:
        if (size := len(head) + len(payload)) > MAX_SHARD_BYTES:
            too_large = f"{size / 2**20:.0f} MiB, and {MAX_SHARD_BYTES >> 20} MiB leave a rank at once"
            self._leave_out(address, f"it has {too_large}; begin with last(64) or batch(0), or pool it")
        elif self._outlet.put(address.tap, payload, head):
            self.written += 1
        else:
            self._leave_out(
                address, f"{MAX_WAITING_BYTES >> 20} MiB wait for the agent; show fewer layers, or pool them"
            )

    def _leave_out(self, address: Address, why: str) -> None:
        self.dropped += 1
        if len(self.left_out) < MAX_WAITING:
            self.left_out.append((address, why))


def _on_host(tensors: Sequence[torch.Tensor]) -> tuple[list[npt.NDArray[Any]], torch.cuda.Event | None]:
    """As arrays, in one copy, which is there when the event has happened. Tensors of the host's memory themselves."""
    if not any(tensor.is_cuda for tensor in tensors):
        return [tensor.numpy() for tensor in tensors], None
    joined = _joined(tensors)
    copy = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True).copy_(joined, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return split(copy.numpy().view(np.uint8), tensors), event


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All of them, one behind the other, in one dimension; of several types their bytes."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    if len(flat) == 1:
        return flat[0]
    alike = all(tensor.dtype is flat[0].dtype for tensor in flat)
    return torch.cat(flat if alike else [tensor.view(torch.uint8) for tensor in flat])


def split(joined: npt.NDArray[np.uint8], tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
    """The bytes of all tensors, one behind the other, as arrays of their types and shapes."""
    found, at = [], 0
    for tensor in tensors:
        end = at + tensor.nbytes
        found.append(joined[at:end].view(_numpy_type(tensor.dtype)).reshape(tuple(tensor.shape)))
        at = end
    return found


@lru_cache
def _numpy_type(kind: torch.dtype) -> np.dtype[Any]:
    return torch.empty((), dtype=kind).numpy().dtype


def _head(address: Address, number: int, finished: Finished) -> bytes:
    if address.spell is None and finished.head:  # of the same place and pass, as the result is
        return addressed(finished.head, address.tap, number)
    now = time.time_ns() // 1000
    stamp = Stamp(address.tap, number, now, address.step, address.microbatch, address.layer)
    head = stamped(finished.frame, stamp, _sections(address, finished.result))
    if address.spell is None:
        finished.head = head
    return head


def _sections(address: Address, result: Result) -> dict[Section, bytes]:
    sections = {
        Section.EXTENT: struct.pack(f"<{len(address.extents)}I", *address.extents),
        Section.ORIGIN: struct.pack(f"<{len(address.origins)}I", *address.origins),
    }
    if address.request:
        sections[Section.REQUEST] = address.request.encode(errors="replace")
    if address.spell is not None:
        sections.update(address.spell(result))
    return sections


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
