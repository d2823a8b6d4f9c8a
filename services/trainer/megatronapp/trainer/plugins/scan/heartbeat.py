"""The heartbeat: once a second, from a thread of its own, also while the training thread is stuck."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.plugins.scan.clock import ThreadClock, now_ns
from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.operations import NAMES
from megatronapp.trainer.plugins.scan.outbox import Outbox
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.telemetry import GpuTelemetry
from megatronapp.trainer.plugins.scan.window import WindowControl
from megatronapp.v1 import trace_pb2

INTERVAL_SECONDS = 1.0


@dataclass(slots=True)
class Position:
    """Where the training thread is; it writes, the heartbeat reads."""

    step: int = 0
    phases: tuple[Phase, ...] = (Phase.START,)
    """Innermost last; none in ordinary steps. Replaced, never changed, so that a reader sees all or nothing."""

    @property
    def phase(self) -> Phase:
        phases = self.phases
        return phases[-1] if phases else Phase.UNSPECIFIED

    def enter(self, phase: Phase) -> None:
        self.phases = (*self.phases, phase)

    def leave(self, phase: Phase) -> None:
        """The innermost of this kind is over, and what it holds; one that was never entered is left alone."""
        phases = self.phases
        if phase in phases:
            self.phases = phases[: len(phases) - 1 - phases[::-1].index(phase)]


@dataclass
class Heartbeat:
    recorder: Recorder
    frontiers: Frontiers
    communicators: Communicators
    control: WindowControl
    position: Position
    outbox: Outbox
    telemetry: GpuTelemetry | None
    interval_seconds: float = INTERVAL_SECONDS
    _stop: threading.Event = field(default_factory=threading.Event)
    _due: threading.Event = field(default_factory=threading.Event)
    """Set: the next heartbeat is due now."""
    _communicators_sent: int = 0

    def start(self) -> None:
        """From the training thread, whose clock is told in every heartbeat."""
        self._clock = ThreadClock(threading.get_ident(), threading.get_native_id())
        self._thread = threading.Thread(target=self._run, name="scan-heartbeat", daemon=True)
        self._thread.start()

    def send_now(self) -> None:
        """Do not wait for the next second: what begins may hold the interpreter for long, and others then wait."""
        self._due.set()

    def close(self) -> None:
        """The last one says that the rank ends in good order."""
        self._stop.set()
        self._due.set()
        self._thread.join(1.0)
        self.outbox.put(trace_pb2.TraceMessage(heartbeat=self.message(closing=True)))

    def _run(self) -> None:
        while True:
            self._due.wait(self.interval_seconds)
            self._due.clear()
            if self._stop.is_set():
                return
            self.outbox.put(trace_pb2.TraceMessage(heartbeat=self.message()))

    def message(self, *, closing: bool = False) -> trace_pb2.Heartbeat:
        name, since_ns = self.recorder.innermost()
        thread_cpu_ns, thread_wait_ns = self._clock.read()
        frontiers = self.frontiers.messages()
        communicators = self.communicators.since(self._communicators_sent)
        self._communicators_sent += len(communicators)
        return trace_pb2.Heartbeat(
            clock_ns=now_ns(),
            unix_ns=time.time_ns(),
            step=self.position.step,
            frontiers=frontiers,
            dropped=self.outbox.dropped,
            control=self.control.window.message(),
            gpu=self.telemetry.latest if self.telemetry else None,
            activity=NAMES[name] if name >= 0 else "",
            activity_since_ns=since_ns,
            communicators=communicators,
            thread_cpu_ns=thread_cpu_ns,
            thread_wait_ns=thread_wait_ns,
            closing=closing,
            phase=int(self.position.phase),  # type: ignore[arg-type]
        )
