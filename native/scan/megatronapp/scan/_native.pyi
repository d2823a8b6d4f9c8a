from collections.abc import Callable, Sequence

from typing_extensions import Buffer

COLUMNS: tuple[str, ...]
"""Names of the columns of a record of rows, in its order (docs/agent.md)."""

def place_brackets(brackets: Sequence[tuple[int, int, int]], /) -> list[tuple[int, int, float]]:
    """HostLine over (device_ns, before_ns, after_ns): host time and error of each, as the recorder would tell them."""

class Recorder:
    """Marks, spans, frontiers and state of one rank, written into a segment (docs/agent.md) that its agent reads.

    Spans are opened and ended by the training thread, or by autograd's while that one waits; `add`, `add_operation`,
    `mark`, `done` and all of tracks and state are for any thread. No method waits for the device. Marks are numbers
    that count up; one of an earlier step counts as passed once its step has been resolved.
    """

    fd: int
    """The segment's descriptor; the recorder's own, closed with it."""
    marks: int
    """Marks taken since the recorder was made."""

    def __init__(
        self,
        on_host: bytes,
        blocking: bytes,
        current_stream: Callable[[int], int] | None,
        device_index: int,
        ring_bytes: int = 16 << 20,
        bulk_bytes: int = 0,
        /,
    ) -> None:
        """`on_host` and `blocking` have one byte per name. `current_stream(device_index)` tells the raw CUDA stream;
        None: a CPU rank. `ring_bytes` is a power of two, at least 4096; so is `bulk_bytes`, at most 256 MiB, or it is
        0: no ring of frames. For the training thread, whose id the segment tells. Raises ValueError, RuntimeError when
        there is no CUDA driver, or no context on the calling thread, and OSError without memory for the segment."""

    # -- spans --
    def context(self, microbatch: int, chunk: int, /) -> None: ...
    def begin(self, name: int, at: int | None = None, /) -> None: ...
    def end(self) -> int: ...
    def end_work(self, tokens: int, length_squares: int, /) -> int: ...
    def end_operation(
        self,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: int | None = None,
        message: int = 0,
        /,
    ) -> int: ...
    def cancel(self) -> int: ...
    def restart(self) -> None: ...
    def switch(self, close: int, layer: int, open_first: int, open_second: int, /) -> None: ...
    def add(self, name: int, begin_ns: int, end_ns: int, cpu_ns: int, /) -> None:
        """A whole host span, from any thread."""
    def add_operation(
        self,
        name: int,
        begin: int,
        end: int,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: int | None = None,
        message: int = 0,
        microbatch: int = -1,
        chunk: int = -1,
        /,
    ) -> None:
        """A whole span between two marks of this step, from any thread."""
    def mark(self) -> int: ...
    def done(self, mark: int, /) -> bool: ...
    def innermost(self) -> tuple[int, int]: ...
    def depth(self) -> int: ...
    def end_step(self, end: tuple[float, ...], /) -> None:
        """Hands what has ended since the last call to the resolver, and forgets what is still open. `end` has the
        fields of a step's end in the record's order (docs/agent.md), beginning with its number; those that are left out
        are 0. Reference, rows and marks are filled in here."""

    def write_frame(self, descriptor: Buffer, payload: Buffer, /) -> None:
        """Copies a frame into the bulk ring, from any thread, without the interpreter's lock: nobody may change the
        buffers meanwhile. Raises ValueError without such a ring and for a frame of more than an eighth of it;
        ValueError or BufferError where one of the two is not contiguous."""

    # -- frontiers --
    def track(self, communicator: int, peer: int, sending: bool, /) -> int:
        """Index of a communicator's (peer -1) or directed pair's entry; the same for the same arguments."""
    def enqueue(self, track: int, operation: int, step: int, message: int, /) -> int:
        """An operation is handed over now. Returns its ticket: how many have been, with it."""
    def started(self, track: int, /) -> None:
        """The oldest operation that has not started has. One that completes has started."""
    def complete(self, track: int, ticket: int, /) -> None:
        """An operation has completed, in whatever order; the frontier moves past all that have, in order. A second time
        changes nothing."""
    def complete_at(self, track: int, ticket: int, mark: int, /) -> None:
        """It completes when the device passes the mark; the resolver watches it."""

    # -- state --
    def set_step(self, step: int, /) -> None: ...
    def set_phase(self, phase: int, /) -> None: ...
    def set_closing(self) -> None: ...
    def set_memory(self, allocated: int, reserved: int, peak: int, total: int, /) -> None:
        """In bytes."""
    def control(self) -> tuple[int, int, int, int, int]:
        """The agent's word: (serial, enabled, interval, continuous, granularity); serial 0: none so far."""
    def close(self, timeout_seconds: float, /) -> bool:
        """Write what the device has done by then, and end the resolver. False: something was left out."""
