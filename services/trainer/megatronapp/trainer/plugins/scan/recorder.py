"""What a recorder is: spans of the training thread, a mark at each border, written into the segment step by step.

A mark is (host time, what else): thread CPU time on a CPU, a CUDA event on a GPU. Which of the two is the timebase's
matter. Two write the same segment (docs/agent.md): python_recorder.py, and the native one (native/scan), which resolves
events in a thread that never takes the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from megatronapp.trainer.agent.layout import StepEnd

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ints = npt.NDArray[np.int64]
Mark = tuple[int, Any]
"""Opaque outside of recorder and timebase."""

RING_BYTES = 16 << 20


class Recorder(Protocol):
    """Spans are opened and ended by the training thread, or by autograd's while that one waits; `add`, `add_operation`,
    `mark`, `done`, tracks and state are for any thread.

    Arguments are positional: the native recorder takes no keywords.
    """

    @property
    def fd(self) -> int:
        """The segment's descriptor; the recorder's own, closed with it."""

    @property
    def marks(self) -> int:
        """Marks taken since the recorder was made."""

    # -- spans --

    def context(self, microbatch: int, chunk: int, /) -> None:
        """What spans that end from now on belong to; -1: nothing."""

    def begin(self, name: int, at: Any = None, /) -> None:
        """A span begins inside the innermost open one, now or at a mark."""

    def end(self) -> Any:
        """The innermost span ends. Returns the mark of the end, for `done`."""

    def end_work(self, tokens: int, length_squares: int, /) -> Any:
        """The same for a span of a microbatch's work."""

    def end_operation(
        self,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Any = None,
        message: int = 0,
        /,
    ) -> Any:
        """The same for a collective or message of `size` bytes; `issued` is the mark of an asynchronous one's start,
        `message` the packed id of a message (core.trace.message_id), 0: not known."""

    def cancel(self) -> Any:
        """The innermost open span never was; returns the mark of its beginning."""

    def restart(self) -> None:
        """The innermost open span begins only now; what has ended in it counts as before it."""

    def switch(self, close: int, layer: int, open_first: int, open_second: int, /) -> None:
        """One border of granularity full: at a single mark end the innermost `close` spans with this layer, then begin
        up to two spans (-1: none)."""

    def add(self, name: int, begin_ns: int, end_ns: int, cpu_ns: int, /) -> None:
        """A whole host span, from any thread."""

    def add_operation(
        self,
        name: int,
        begin: Any,
        end: Any,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Any = None,
        message: int = 0,
        microbatch: int = -1,
        chunk: int = -1,
        /,
    ) -> None:
        """A whole span between two marks of this step, from any thread."""

    def mark(self) -> Any:
        """Now, on the current stream."""

    def done(self, mark: Any, /) -> bool:
        """Whether the device has passed a mark. From any thread."""

    def innermost(self) -> tuple[int, int]:
        """Name and host time of the innermost open span, (-1, 0) when none is."""

    def depth(self) -> int:
        """Number of open spans."""

    def end_step(self, end: StepEnd, /) -> None:
        """What has ended since the last call goes to the agent as soon as the device has done it; what is still open is
        forgotten. Reference, rows and marks of the end are the recorder's own to fill in."""

    # -- frames --

    def write_frame(self, descriptor: Buffer, payload: Buffer, /) -> None:
        """Copies a frame into the bulk ring, from any thread; frames that nobody has read yet may be overwritten. Only
        reader and writer know what the descriptor means. Raises ValueError without such a ring, and for a frame of more
        than an eighth of it; ValueError or BufferError where one of the two is not contiguous."""

    # -- frontiers --

    def track(self, communicator: int, peer: int, sending: bool, /) -> int:
        """Index of a communicator's (peer -1) or directed pair's entry; the same for the same arguments."""

    def enqueue(self, track: int, operation: int, step: int, message: int, /) -> int:
        """An operation is handed over now; step and message as in layout.OPEN_MESSAGE. Returns its ticket: how many
        have been, with it."""

    def started(self, track: int, /) -> None:
        """The oldest operation that has not started has. One that completes has started."""

    def complete(self, track: int, ticket: int, /) -> None:
        """An operation has completed, in whatever order; a second time changes nothing."""

    def complete_at(self, track: int, ticket: int, mark: Any, /) -> None:
        """It completes when the device passes the mark."""

    # -- state --

    def set_step(self, step: int, /) -> None: ...

    def set_phase(self, phase: int, /) -> None: ...

    def set_closing(self) -> None: ...

    def set_memory(self, allocated: int, reserved: int, peak: int, total: int, /) -> None:
        """In bytes, on the device."""

    def control(self) -> tuple[int, int, int, int, int]:
        """The agent's word: (serial, enabled, interval, continuous, granularity); serial 0: none so far."""

    def close(self, timeout_seconds: float, /) -> bool:
        """Write what the device has done by then. False: something was left out. Nothing may be called after it."""


class Timebase(Protocol):
    def mark(self) -> Mark: ...

    def host(self) -> Mark: ...

    def done(self, mark: Mark) -> bool: ...

    def resolve(self, rows: list[tuple[Mark, Mark, Mark]]) -> Times: ...


@dataclass(frozen=True, slots=True)
class Times:
    """Issue, begin and end of each row in ns; CPU time between begin and end. Where on a stream: host time of issue,
    and time from the end mark's enqueue to its happening."""

    issue: Ints
    begin: Ints
    end: Ints
    cpu: Ints
    enqueue: Ints
    behind: Ints
    reference_ns: int = 0
    reference_error_ns: int = 0
