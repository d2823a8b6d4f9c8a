"""The recorder in Python. There is no thread beside the training thread: on a GPU a step is written at a later step's
border, when the device has done it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.frontier_table import FrontierTable
from megatronapp.trainer.plugins.scan.operations import BLOCKING, ON_HOST
from megatronapp.trainer.plugins.scan.recorder import RING_BYTES, Mark, Timebase, Times
from megatronapp.trainer.plugins.scan.segment_writer import SegmentWriter

Row = tuple[tuple[int, ...], Mark, Mark, Mark]
"""The columns up to `message`; the marks of issue, begin and end."""

MAX_STEPS_AHEAD = 64
"""Steps that the device may be behind before the oldest are given up."""
POLL_SECONDS = 0.005
_NO_OPERATION = (0, -1, 0, 0)
_NO_WORK = (0, 0)
_MICROSECONDS = (1 << layout.ACTIVITY_SHIFT) - 1


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


@dataclass(frozen=True, slots=True)
class _Step:
    """A finished step that the device may not have done yet."""

    end: StepEnd
    rows: list[Row]


class PythonRecorder:
    """See Recorder."""

    def __init__(self, timebase: Timebase, ring_bytes: int = RING_BYTES, bulk_bytes: int = 0) -> None:
        """For the training thread. Raises OSError without memory for the segment."""
        self._timebase = timebase
        self._segment = SegmentWriter(ring_bytes, bulk_bytes=bulk_bytes)
        self._frontiers = FrontierTable(self._segment)
        self.fd = self._segment.fd
        self._count = itertools.count(1).__next__
        self.marks = self._marks_before = 0
        self._context = (-1, -1)
        self._open: list[tuple[int, Mark, int, int]] = []
        self._rows: list[Row] = []
        self._blocked = 0
        self._steps: deque[_Step] = deque()
        self._completing: deque[tuple[int, int, Mark]] = deque()
        self._lost = 0
        self.done = timebase.done
        self.track, self.started, self.complete = (
            self._frontiers.track,
            self._frontiers.started,
            self._frontiers.complete,
        )
        self.control = self._segment.control
        self.write_frame = self._segment.put_frame

    # -- spans --

    def context(self, microbatch: int, chunk: int, /) -> None:
        self._context = (microbatch, chunk)

    def begin(self, name: int, at: Mark | None = None, /) -> None:
        self._push(name, at or self._mark_for(name))

    def end(self) -> Mark:
        return self._end(_NO_OPERATION, _NO_WORK, 0, None, 0)

    def end_work(self, tokens: int, length_squares: int, /) -> Mark:
        return self._end(_NO_OPERATION, (tokens, length_squares), 0, None, 0)

    def end_operation(
        self,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Mark | None = None,
        message: int = 0,
        /,
    ) -> Mark:
        return self._end((communicator, peer, sequence, size), _NO_WORK, stream, issued, message)

    def cancel(self) -> Mark:
        _, begin, _, self._blocked = self._open.pop()
        self._write_activity()
        return begin

    def restart(self) -> None:
        name, _, _, self._blocked = self._open.pop()
        self.begin(name)

    def switch(self, close: int, layer: int, open_first: int, open_second: int, /) -> None:
        mark = self.mark()
        for _ in range(close):
            name, begin, first, self._blocked = self._open.pop()
            row = (name, first, self._blocked, *self._context, layer, *_NO_OPERATION, *_NO_WORK, 0, 0)
            self._rows.append((row, begin, begin, mark))
        for name in (open_first, open_second):
            if name >= 0:
                self._push(name, mark)
        self._write_activity()

    def add(self, name: int, begin_ns: int, end_ns: int, cpu_ns: int, /) -> None:
        row = (name, len(self._rows), self._blocked, -1, -1, -1, *_NO_OPERATION, *_NO_WORK, 0, 0)
        begin = (begin_ns, 0)
        self._rows.append((row, begin, begin, (end_ns, cpu_ns)))

    def add_operation(
        self,
        name: int,
        begin: Mark,
        end: Mark,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Mark | None = None,
        message: int = 0,
        microbatch: int = -1,
        chunk: int = -1,
        /,
    ) -> None:
        place = (name, len(self._rows), self._blocked, microbatch, chunk, -1)
        row = (*place, communicator, peer, sequence, size, *_NO_WORK, stream, message)
        self._rows.append((row, issued or begin, begin, end))

    def mark(self) -> Mark:
        self.marks = self._count()
        return self._timebase.mark()

    def innermost(self) -> tuple[int, int]:
        try:
            name, mark, _, _ = self._open[-1]
        except IndexError:
            return -1, 0
        return name, mark[0]

    def depth(self) -> int:
        return len(self._open)

    def end_step(self, end: StepEnd, /) -> None:
        marks = self.marks - self._marks_before
        self._steps.append(_Step(end._replace(rows=len(self._rows), marks=marks), self._rows))
        self._marks_before = self.marks
        self._rows, self._open, self._blocked = [], [], 0
        self._write_activity()
        self._segment.set_marks(self.marks, marks)
        self._write_done()
        while len(self._steps) > MAX_STEPS_AHEAD:
            self._lost += len(self._steps.popleft().rows)
            self._segment.set_state(lost=self._lost)

    # -- frontiers --

    def enqueue(self, track: int, operation: int, step: int, message: int, /) -> int:
        self._poll()
        return self._frontiers.enqueue(track, operation, step, message)

    def complete_at(self, track: int, ticket: int, mark: Mark, /) -> None:
        if self.done(mark):
            self.complete(track, ticket)
        else:
            self._completing.append((track, ticket, mark))

    # -- state --

    def set_step(self, step: int, /) -> None:
        self._segment.set_state(step=step)

    def set_phase(self, phase: int, /) -> None:
        self._segment.set_state(phase=phase)

    def set_closing(self) -> None:
        self._segment.set_state(closing=1)

    def set_memory(self, allocated: int, reserved: int, peak: int, total: int, /) -> None:
        self._segment.set_state(allocated=allocated, reserved=reserved, peak=peak, total=total)

    def close(self, timeout_seconds: float, /) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not (complete := self._write_done()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._segment.close()
        return complete

    # -- within --

    def _mark_for(self, name: int) -> Mark:
        self.marks = self._count()
        return self._timebase.host() if ON_HOST[name] else self._timebase.mark()

    def _push(self, name: int, mark: Mark) -> None:
        self._open.append((name, mark, len(self._rows), self._blocked))
        if BLOCKING[name]:
            self._blocked += 1
        self._write_activity()

    def _end(
        self,
        operation: tuple[int, int, int, int],
        work: tuple[int, int],
        stream: int,
        issued: Mark | None,
        message: int,
    ) -> Mark:
        name, begin, first, self._blocked = self._open.pop()
        end = self._mark_for(name)
        row = (name, first, self._blocked, *self._context, -1, *operation, *work, stream, message)
        self._rows.append((row, issued or begin, begin, end))
        self._write_activity()
        return end

    def _write_activity(self) -> None:
        word = 0
        if self._open:
            name, (since_ns, _), _, _ = self._open[-1]
            word = name + 1 << layout.ACTIVITY_SHIFT | since_ns // 1000 & _MICROSECONDS
        self._segment.set_activity(word)

    def _poll(self) -> None:
        """Operations whose marks the device has passed; of those that stand in order the first ones."""
        while self._completing and self.done(self._completing[0][2]):
            track, ticket, _ = self._completing.popleft()
            self.complete(track, ticket)

    def _write_done(self) -> bool:
        """Write the steps that the device has done; whether that is all of them."""
        while self._steps and all(self.done(end) for *_, end in reversed(self._steps[0].rows)):
            self._poll()  # before the step's events are used again
            self._write(self._steps.popleft())
        self._poll()
        return not self._steps

    def _write(self, step: _Step) -> None:
        times = self._timebase.resolve([(issue, begin, end) for _, issue, begin, end in step.rows])
        placed = (times.issue, times.begin, times.end, times.cpu, times.enqueue, times.behind)
        columns = np.array([row for row, *_ in step.rows], np.int64).reshape(-1, len(layout.COLUMNS) - len(placed))
        self._segment.put_rows(step.end.step, np.hstack((columns, np.stack(placed, axis=1))))
        self._segment.put_end(
            step.end._replace(reference_ns=times.reference_ns, reference_error_ns=times.reference_error_ns)
        )
