"""Which steps are traced in detail, and how that changes at run time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from megatronapp.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class Window:
    """Of every `interval` steps the first `continuous` are traced; steps count from 1."""

    enabled: bool
    interval: int = 5
    continuous: int = 2
    full: bool = True

    def contains(self, step: int) -> bool:
        return self.enabled and (step - 1) % self.interval < self.continuous

    def changed(self, control: trace_pb2.TraceControl) -> Window:
        """The window that a control message asks for; what it leaves at 0 stays as it is."""
        granularity = control.granularity
        return replace(
            self,
            enabled=control.enabled,
            interval=control.interval or self.interval,
            continuous=control.continuous_iterations or self.continuous,
            full=self.full if granularity == trace_pb2.GRANULARITY_UNSPECIFIED else granularity == FULL,
        )

    def message(self) -> trace_pb2.TraceControl:
        return trace_pb2.TraceControl(
            enabled=self.enabled,
            interval=self.interval,
            continuous_iterations=self.continuous,
            granularity=FULL if self.full else trace_pb2.GRANULARITY_BASE,
        )


FULL = trace_pb2.GRANULARITY_FULL


class WindowControl:
    """The window in force. A change from another thread waits for the next step border."""

    def __init__(self, window: Window) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._next = window

    @property
    def window(self) -> Window:
        return self._window

    def request(self, control: trace_pb2.TraceControl) -> None:
        with self._lock:
            self._next = self._next.changed(control)

    def at_border(self) -> Window:
        """Called between two steps: what was asked for is in force from here."""
        with self._lock:
            self._window = self._next
        return self._window
