"""The recorder in Python: spans of the training thread, a mark at each border, resolved later by a side thread.

A mark is (host time, what else): thread CPU time on a CPU, a CUDA event on a GPU. Which of the two is the timebase's
matter. The native recorder (native/scan) has the same methods and the same columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.message_id import NO_MESSAGE
from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.operations import BLOCKING, ON_HOST

Ints = npt.NDArray[np.int64]
Mark = tuple[int, Any]
"""Opaque outside of recorder and timebase."""

POLL_SECONDS = 0.02
_NO_OPERATION = (0, -1, 0, 0)
_NO_WORK = (0, 0)

COLUMNS = (
    "name",
    "first",
    "blocked",
    "microbatch",
    "chunk",
    "layer",
    "communicator",
    "peer",
    "sequence",
    "bytes",
    "tokens",
    "length_squares",
    "stream",
    "message",
)


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of one step, in the order in which they ended; int64 arrays of one entry per span, times in ns.

    `columns` holds those named in COLUMNS: `first` is the number of spans that had ended when this one began (so rows
    first..own-1 lie inside it), `blocked` the number of blocking spans around it.
    """

    columns: dict[str, Ints]
    start: Ints
    duration: Ints
    exposed: Ints
    """What it took of the thread's or stream's time: of an asynchronous operation only the waiting."""
    cpu: Ints
    """CPU time of the training thread during `exposed`; 0 for spans of a GPU stream."""
    enqueue: Ints
    """Host time at the enqueue of a GPU stream's span; 0 for others."""
    behind: Ints
    """How far the device was behind its host at the end of a GPU stream's span; 0 for others."""
    reference_ns: int = 0
    reference_error_ns: int = 0

    def __len__(self) -> int:
        return len(self.start)


class Sealed(Protocol):
    """What was recorded between two seals. For side threads."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether all of it has happened on the device, within this time."""

    def resolve(self) -> Spans:
        """The spans; once, after a wait that said yes."""


class Recorder(Protocol):
    """Methods are for the training thread (or autograd's, while that one waits) unless they say otherwise.

    Arguments are positional: the native recorder takes no keywords.
    """

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
        message: int = NO_MESSAGE,
        /,
    ) -> Any:
        """The same for a collective or message of `size` bytes; `issued` is the mark of an asynchronous one's start,
        `message` a message's packed name."""

    def cancel(self) -> Any:
        """The innermost open span never was; returns the mark of its beginning."""

    def restart(self) -> None:
        """The innermost open span begins only now; what has ended in it counts as before it."""

    def switch(self, close: int, layer: int, open_first: int, open_second: int, /) -> None:
        """One border of granularity full: at a single mark end the innermost `close` spans with this layer, then begin
        up to two spans (-1: none)."""

    def add(self, name: int, begin_ns: int, end_ns: int, cpu_ns: int, /) -> None:
        """A whole host span, from any thread."""

    def mark(self) -> Any:
        """Now, on the current stream."""

    def done(self, mark: Any, /) -> bool:
        """Whether the device has passed a mark. From any thread."""

    def innermost(self) -> tuple[int, int]:
        """Name and host time of the innermost open span, (-1, 0) when none is. From any thread."""

    def depth(self) -> int:
        """Number of open spans."""

    def seal(self) -> Sealed:
        """Take away what has ended, and forget what is still open."""


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


class CpuTimebase:
    """Wall time and CPU time of the calling thread."""

    @staticmethod
    def mark() -> Mark:
        return now_ns(), cpu_ns()

    host = mark

    @staticmethod
    def done(mark: Mark) -> bool:
        return bool(mark)

    @staticmethod
    def resolve(rows: list[tuple[Mark, Mark, Mark]]) -> Times:
        marks = np.array(rows, np.int64).reshape(-1, 3, 2)
        (issue, begin, end), cpu = marks[:, :, 0].T, marks[:, :, 1]
        none = np.zeros(len(marks), np.int64)
        return Times(issue, begin, end, cpu=cpu[:, 2] - cpu[:, 1], enqueue=none, behind=none)


class PythonRecorder:
    """See Recorder."""

    def __init__(self, timebase: Timebase) -> None:
        self._timebase = timebase
        self._stream_mark: Callable[[], Mark] = timebase.mark
        self._host_mark: Callable[[], Mark] = timebase.host
        self._context = (-1, -1)
        self._open: list[tuple[int, Mark, int, int]] = []
        self._rows: list[tuple[int, ...]] = []
        self._marks: list[tuple[Mark, Mark, Mark]] = []
        self._blocked = 0
        self.mark = timebase.mark
        self.done = timebase.done

    def context(self, microbatch: int, chunk: int, /) -> None:
        self._context = (microbatch, chunk)

    def begin(self, name: int, at: Mark | None = None, /) -> None:
        self._push(name, at or (self._host_mark() if ON_HOST[name] else self._stream_mark()))

    def end(self) -> Mark:
        return self._end(_NO_OPERATION, _NO_WORK, 0, None, NO_MESSAGE)

    def end_work(self, tokens: int, length_squares: int, /) -> Mark:
        return self._end(_NO_OPERATION, (tokens, length_squares), 0, None, NO_MESSAGE)

    def end_operation(
        self,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Mark | None = None,
        message: int = NO_MESSAGE,
        /,
    ) -> Mark:
        return self._end((communicator, peer, sequence, size), _NO_WORK, stream, issued, message)

    def cancel(self) -> Mark:
        _, begin, _, self._blocked = self._open.pop()
        return begin

    def restart(self) -> None:
        name, _, _, self._blocked = self._open.pop()
        self.begin(name)

    def switch(self, close: int, layer: int, open_first: int, open_second: int, /) -> None:
        mark = self._stream_mark()
        for _ in range(close):
            name, begin, first, self._blocked = self._open.pop()
            self._rows.append(
                (name, first, self._blocked, *self._context, layer, *_NO_OPERATION, *_NO_WORK, 0, NO_MESSAGE)
            )
            self._marks.append((begin, begin, mark))
        for name in (open_first, open_second):
            if name >= 0:
                self._push(name, mark)

    def add(self, name: int, begin_ns: int, end_ns: int, cpu_ns: int, /) -> None:
        self._rows.append((name, len(self._rows), self._blocked, -1, -1, -1, *_NO_OPERATION, *_NO_WORK, 0, NO_MESSAGE))
        begin = (begin_ns, 0)
        self._marks.append((begin, begin, (end_ns, cpu_ns)))

    def innermost(self) -> tuple[int, int]:
        try:
            name, mark, _, _ = self._open[-1]
        except IndexError:
            return -1, 0
        return name, mark[0]

    def depth(self) -> int:
        return len(self._open)

    def seal(self) -> Sealed:
        sealed = _SealedRows(self._timebase, self._rows, self._marks)
        self._rows, self._marks, self._open, self._blocked = [], [], [], 0
        return sealed

    def _push(self, name: int, mark: Mark) -> None:
        self._open.append((name, mark, len(self._rows), self._blocked))
        if BLOCKING[name]:
            self._blocked += 1

    def _end(
        self,
        operation: tuple[int, int, int, int],
        work: tuple[int, int],
        stream: int,
        issued: Mark | None,
        message: int,
    ) -> Mark:
        name, begin, first, self._blocked = self._open.pop()
        end = self._host_mark() if ON_HOST[name] else self._stream_mark()
        self._rows.append((name, first, self._blocked, *self._context, -1, *operation, *work, stream, message))
        self._marks.append((issued or begin, begin, end))
        return end


class _SealedRows:
    def __init__(self, timebase: Timebase, rows: list[tuple[int, ...]], marks: list[tuple[Mark, Mark, Mark]]) -> None:
        self._timebase, self._rows, self._marks = timebase, rows, marks

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not all(self._timebase.done(end) for _, _, end in reversed(self._marks)):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def resolve(self) -> Spans:
        table = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        times = self._timebase.resolve(self._marks)
        return Spans(
            columns=dict(zip(COLUMNS, table.T, strict=True)),
            start=times.issue,
            duration=times.end - times.issue,
            exposed=times.end - times.begin,
            cpu=times.cpu,
            enqueue=times.enqueue,
            behind=times.behind,
            reference_ns=times.reference_ns,
            reference_error_ns=times.reference_error_ns,
        )
