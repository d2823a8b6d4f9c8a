"""Where a rank stands, as its newest heartbeat and its agent tell."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.trace.membership import Process
from megatronapp.core.trace.span_names import IN_PASSES
from megatronapp.detector import patience
from megatronapp.detector.positions import Positions
from megatronapp.detector.signals.devices import stands
from megatronapp.detector.signals.order import Whereabouts
from megatronapp.detector.signals.threads import computes
from megatronapp.v1 import trace_pb2


@dataclass(slots=True)
class RankState:
    positions: Positions
    """As its newest heartbeat tells."""
    step: int = 0
    activity: str = ""
    phase: int = patience.START
    heard_unix_ns: int = 0
    closing: bool = False
    lost: bool = False
    telemetry: trace_pb2.GpuTelemetry | None = None
    clock_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    process: Process | None = None
    """None where it was lost before its first heartbeat."""
    stack: trace_pb2.Stack | None = None
    """What it was in when its agent looked, since it has moved last."""
    passing: bool = False
    """CPU ranks: its thread is in a pass, and in no operation that is told of."""
    computing: bool = False
    """And uses the processor."""
    unpassed_mark_ns: int = 0
    """When it recorded the oldest mark that its device has not passed; 0: none, or not known."""

    @property
    def node(self) -> str:
        return "" if self.process is None else self.process.placement.node

    @property
    def whereabouts(self) -> Whereabouts:
        """Of a program that tells no stages each rank counts as a role of its own."""
        process = self.process
        if process is None or not process.hello_unix_ns or process.attached == trace_pb2.ATTACHED_PROGRAM:
            return Whereabouts(self.step, f"rank {self.positions.rank}")
        return Whereabouts(self.step, process.placement.role, process.placement.pipeline)

    def watch_thread(self, heartbeat: trace_pb2.SentHeartbeat) -> None:
        """Of a rank whose thread computes."""
        clock_ns, cpu_ns, queued_ns = heartbeat.clock_ns, heartbeat.thread_cpu_ns, heartbeat.thread_wait_ns
        self.passing = self.activity in IN_PASSES
        self.computing = self.passing and computes(
            clock_ns - self.clock_ns, cpu_ns - self.cpu_ns, queued_ns - self.queued_ns
        )
        self.clock_ns, self.cpu_ns, self.queued_ns = clock_ns, cpu_ns, queued_ns

    @property
    def device_stands(self) -> bool:
        """In work of its own: it waits for nobody."""
        return stands(self.unpassed_mark_ns, self.positions.opened_ns())

    @property
    def said_of_job(self) -> str:
        """By NCCL's RAS, where its agent has asked."""
        return "" if self.stack is None else self.stack.ras
