"""A rank without training: a process's recorder and its link to an agent, as the plug-in has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from megatronapp.core.trace.values import Communicator, Device, Hello, Identity, Placement, Schedule
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.plugins.scan import operations
from megatronapp.trainer.plugins.scan.agent_link import AgentLink, AgentPlace
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase, PythonRecorder
from megatronapp.trainer.plugins.scan.recorder import RING_BYTES, Timebase
from megatronapp.trainer.plugins.scan.window import Window

HELLO = Hello(
    identity=Identity(run="run", job="team/job", attempt=1, rank=0, incarnation=7),
    placement=Placement(node="here"),
    schedule=Schedule(name="none", microbatches=1),
    device=Device.CPU,
)


class RankWriter:
    def __init__(
        self,
        socket: Path,
        *,
        rank: int = 0,
        folder: Path | None = None,
        collector: str = "",
        ring: int = RING_BYTES,
        own: bool = False,
        place: AgentPlace | None = None,
        timebase: Timebase | None = None,
        communicators: Sequence[Communicator] = (),
        operations_fd: int = -1,
    ) -> None:
        self.recorder = PythonRecorder(timebase or CpuTimebase(), ring)
        self.hello: dict[str, Any] = {
            **asdict(
                replace(
                    HELLO,
                    identity=replace(HELLO.identity, rank=rank, incarnation=7 + rank),
                    communicators=tuple(communicators),
                )
            ),
            "spans": operations.document(),
            "control": asdict(Window(enabled=True).control()),
            "collector_address": collector,
            "trace_dir": str(folder) if folder else "",
        }
        where = place or AgentPlace(socket, own, own)
        self.link = AgentLink(where, self.recorder.fd, lambda: self.hello, operations_fd)
        self.link.border()

    def step(self, number: int, spans: int = 3, *, traced: bool = True) -> None:
        self.recorder.set_step(number)
        self.recorder.control()
        for _ in range(spans):
            self.recorder.begin(Operation.FORWARD)
            self.recorder.end_work(16, 256)
        self.link.border()
        self.recorder.end_step(
            StepEnd(number, start_ns=1, duration_ns=2, cpu_ns=1, traced=traced, known=layout.KNOWN_LOSS, loss=1.0)
        )

    def close(self) -> bool:
        self.recorder.set_closing()
        self.recorder.close(1.0)
        return self.link.close(30.0)
