"""Trace control on its way from the collector to a rank, and what is in force there."""

from __future__ import annotations

from collections import deque

from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.validate import check_control
from megatronapp.core.trace.values import Granularity, TraceControl
from megatronapp.trainer.agent.segment import Segment
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


class ControlRelay:
    """What is asked for goes into the segment; the rank looks there after it has told a new step's number. So once the
    segment's step is another than right behind the writing, what was asked for is in force."""

    def __init__(self, segment: Segment, in_force: TraceControl) -> None:
        self._segment = segment
        self._asked: deque[trace_pb2.TraceControl] = deque(maxlen=16)
        self._next = self.in_force = in_force
        self._written_in: int | None = None

    def ask(self, control: trace_pb2.TraceControl) -> None:
        """From any thread."""
        self._asked.append(control)

    def relay(self) -> None:
        while self._asked:
            control = self._asked.popleft()
            try:
                check_control(control)
            except DataError as error:
                log.warning("control_refused", reason=str(error))
                continue
            self._write(merged(self._next, control))
        if self._written_in not in (None, self._segment.state.step):
            self.in_force, self._written_in = self._next, None

    def _write(self, control: TraceControl) -> None:
        self._next = control
        self._segment.write_control(
            control.enabled,
            control.interval,
            control.continuous_iterations,
            control.granularity,
            self._segment.serial % (1 << 63) + 1,
        )
        self._written_in = self._segment.state.step


def merged(current: TraceControl, asked: trace_pb2.TraceControl) -> TraceControl:
    """What the collector leaves at 0 stays as it is."""
    full = asked.granularity == trace_pb2.GRANULARITY_FULL
    granularity = Granularity.FULL if full else Granularity.BASE
    return TraceControl(
        enabled=asked.enabled,
        interval=asked.interval or current.interval,
        continuous_iterations=asked.continuous_iterations or current.continuous_iterations,
        granularity=granularity if asked.granularity else current.granularity,
    )
