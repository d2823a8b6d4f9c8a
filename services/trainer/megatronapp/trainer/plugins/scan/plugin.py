"""MegaScan in the training process: the plug-in, and how its parts are put together."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import (
    Attached,
    Device,
    Evaluation,
    Granularity,
    Hello,
    Phase,
    Progress,
    TraceControl,
)
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.plugins.base import Degree, Plugin, PluginContext, Preparation, TimerListener
from megatronapp.trainer.plugins.scan import flags, flight_recorder, operations
from megatronapp.trainer.plugins.scan.agent_link import AgentLink, find_agent
from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.flags import ScanSettings
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.hooks.collectives import CollectiveHooks
from megatronapp.trainer.plugins.scan.hooks.data import TracedData
from megatronapp.trainer.plugins.scan.hooks.disaggregated import DisaggregatedHooks
from megatronapp.trainer.plugins.scan.hooks.garbage import GarbageHooks
from megatronapp.trainer.plugins.scan.hooks.layers import LayerHooks
from megatronapp.trainer.plugins.scan.hooks.microbatches import MicrobatchHooks
from megatronapp.trainer.plugins.scan.hooks.p2p import P2PHooks
from megatronapp.trainer.plugins.scan.hooks.passes import PassListener
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.hooks.processor import ProcessorHooks
from megatronapp.trainer.plugins.scan.hooks.timers import GradSyncListener
from megatronapp.trainer.plugins.scan.memory import READ_EVERY_NS, MemoryGauge
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.position import Position
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import make_recorder
from megatronapp.trainer.plugins.scan.stacks import StackFile
from megatronapp.trainer.plugins.scan.window import Window

if TYPE_CHECKING:
    from typing import Self

log = get_logger(__name__)

FLUSH_SECONDS = 2.0
OVERDUE_NS = 2 * READ_EVERY_NS
"""The memory is read ahead of the optimizer, where the host is about to wait for the gradients' norm: behind it, at the
step's border, the device of a rank that steps a small part of the weights has little left to do, and a reading would be
the job's time. There it is read of ranks that have no optimizer.
"""
OPERATION_OF_PHASE = {
    Phase.EVALUATION: Operation.EVALUATE,
    Phase.CHECKPOINT: Operation.CHECKPOINT,
}


class Hooks(Protocol):
    def install(self) -> None: ...

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _StepStart:
    number: int
    start_ns: int
    cpu_ns: int
    traced: bool


class ScanPlugin(Plugin):
    """Records what the rank does, into memory that its agent reads (docs/agent.md).

    Nothing of it runs in a thread of its own that takes the interpreter, and nothing waits for the agent.
    """

    name: ClassVar[str] = "scan"
    serves: ClassVar[bool] = True

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        flags.add_arguments(parser)

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        traced = flags.parse(args, preparation.environment.collector_address) is not None
        if not (traced and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
            return preparation
        return replace(preparation, variables={**preparation.variables, **flight_recorder.variables(os.environ)})

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        asked_for = context.channel.frame_bytes > 0 or context.channel.operations_fd >= 0
        settings = flags.parse(args, context.collector_address, asked_for=asked_for)
        return cls(settings, context) if settings else None

    def __init__(self, settings: ScanSettings, context: PluginContext) -> None:
        self._context = context
        self._settings = settings
        self._folder = flags.writable(settings.folder) if settings.folder else None
        self._window = settings.window
        self._serial = 0
        self._position = Position()
        identity, first = context.identity, context.placement.local_rank == 0
        self._recorder: Recorder = make_recorder(
            context.device, first_of_node=first, bulk_bytes=context.channel.frame_bytes
        )
        self._recorder.set_phase(self._position.phase)
        self._stacks = StackFile()
        on_gpu = context.device.type == "cuda" and torch.distributed.is_initialized()
        self._flight_recorder = flight_recorder.document(os.environ, torch.distributed.get_rank()) if on_gpu else None
        place = find_agent(identity.run, identity.attempt, first_of_node=first)
        self._link = AgentLink(place, self._recorder.fd, self._hello, context.channel.operations_fd)
        self._communicators = Communicators(lambda new: self._link.communicators([new]), context.world.ranks)
        self._frontiers = Frontiers(self._recorder)
        self._probe = Probe(self._recorder, self._communicators, self._frontiers)
        self._memory = MemoryGauge(context.device) if context.device.type == "cuda" else None
        on_cpu = context.device.type == "cpu"
        processor = ProcessorHooks(self._probe) if on_cpu else None
        self._p2p = P2PHooks(self._probe, context.pipeline)
        self._passes: MicrobatchHooks | PassListener
        self._hooks: tuple[Hooks, ...] = (CollectiveHooks(self._probe), GarbageHooks(self._probe))
        if context.degree is Degree.FULL:
            self._passes = MicrobatchHooks(self._probe, dynamic=context.attached is Attached.UNSPECIFIED)
            self._hooks = (self._passes, self._p2p, *self._hooks, *((processor,) if processor else ()))
            if context.placement.role:
                self._hooks = (*self._hooks, DisaggregatedHooks(self._probe))
            self._listeners: tuple[TimerListener, ...] = (GradSyncListener(self._probe), self._p2p)
        else:
            self._passes = PassListener(self._probe, before=processor.work if processor else lambda: None)
            self._listeners = (self._passes,)
        self._layers = LayerHooks(self._probe)
        self._phases: list[Phase] = []
        self._current: _StepStart | None = None
        self._first = True
        self._closed = self._attached = False
        self.attach()
        self._link.border()
        if context.channel.frame_bytes or context.channel.operations_fd >= 0:
            context.channel.line = _Line(self)

    # -- what the trainer calls --

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._link.border()
        self._layers.models(chunks)

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return TracedData(self._probe, iterator)

    def step_begin(self, step: int) -> None:
        if not self._link.connected:
            self._link.border()
        self._recorder.set_step(step)
        window = self._controlled()
        traced = window.contains(step)
        self._layers.attach(traced and window.full)
        self._passes.step_begin()
        self._probe.works.clear()
        if self._first:
            self._phases.append(Phase.FIRST_STEP)
            self._first = False
        self._current = _StepStart(step, now_ns(), cpu_ns(), traced)
        self._recorder.begin(Operation.STEP)
        self._probe.on = True

    def step_end(self, step: int, progress: Progress | None) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        self._p2p.step_end()
        self._probe.on = False
        self._recorder.end()
        self._frontiers.poll()
        self._read_memory(OVERDUE_NS)
        self._link.border()  # names of communicators before the rows that need them
        self._recorder.end_step(_end_of(current, self._phases, progress))
        self._phases.clear()
        self._leave(Phase.START)

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        probe = self._probe

        def traced_step() -> Any:
            self._read_memory()
            if not probe.on:
                return step()
            probe.recorder.begin(Operation.OPTIMIZER)
            result = step()
            probe.recorder.end()
            return result

        return traced_step

    def border_due(self, step: int) -> bool:
        """Serving: there are no steps at whose borders the agent would be looked for."""
        if self._context.serving:
            self._link.border()
        return False

    def checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def traced_write(*args: Any, **kwargs: Any) -> Any:
            recorder.begin(Operation.CHECKPOINT_WRITE)
            try:
                return write(*args, **kwargs)
            finally:
                recorder.end()

        return traced_write

    def phase_begin(self, phase: Phase) -> None:
        self._phases.append(phase)
        self._position.enter(phase)
        self._recorder.set_phase(self._position.phase)
        self._probe.on = False
        if phase in OPERATION_OF_PHASE:
            self._recorder.begin(OPERATION_OF_PHASE[phase])

    def phase_end(self, phase: Phase) -> None:
        if phase in OPERATION_OF_PHASE and self._recorder.depth():
            self._recorder.end()
        self._leave(phase)
        self._probe.on = self._current is not None

    def evaluation(self, evaluation: Evaluation) -> None:
        self._link.evaluation(evaluation)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._probe.on = False
        self.detach()
        deadline = time.monotonic() + FLUSH_SECONDS
        self._frontiers.poll()
        self._link.border(last=True)
        self._recorder.set_closing()
        whole = self._recorder.close(FLUSH_SECONDS / 2)
        received = self._link.close(max(deadline - time.monotonic(), FLUSH_SECONDS / 4))
        self._stacks.close()
        flight_recorder.remove()
        if not (whole and received):
            log.warning("trace_cut", recorded=whole, agent_done=received)

    # -- how it is put together --

    def attach(self) -> None:
        """Put all hooks in place, but for those of granularity full, which come and go with the windows."""
        if not self._attached:
            self._attached = True
            self._context.timers.listeners[:0] = self._listeners
            for hooks in self._hooks:
                hooks.install()

    def detach(self) -> None:
        """Take all hooks off: torch and megatron-core are as they were."""
        if self._attached:
            self._attached = False
            self._layers.attach(False)
            for hooks in reversed(self._hooks):
                hooks.remove()
            for listener in self._listeners:
                self._context.timers.listeners.remove(listener)

    def _controlled(self) -> Window:
        """The window from here on: what the agent asks for comes into force between two steps."""
        serial, enabled, interval, continuous, granularity = self._recorder.control()
        if serial not in (0, self._serial):
            self._serial = serial
            self._window = Window.of(
                TraceControl(
                    enabled=bool(enabled),
                    interval=interval,
                    continuous_iterations=continuous,
                    granularity=Granularity(granularity),
                )
            )
        return self._window

    def _read_memory(self, after_ns: int = READ_EVERY_NS) -> None:
        if self._memory is not None and (reading := self._memory.poll(now_ns(), after_ns)):
            self._recorder.set_memory(*reading)

    def _leave(self, phase: Phase) -> None:
        before = self._position.phase
        self._position.leave(phase)
        if self._position.phase is not before:
            self._recorder.set_phase(self._position.phase)

    def _hello(self) -> dict[str, Any]:
        context = self._context
        introduce = context.channel.introduce
        hello = Hello(
            identity=context.identity,
            placement=context.placement,
            schedule=context.schedule,
            device=Device.CUDA if context.device.type == "cuda" else Device.CPU,
            communicators=self._communicators.table(),
            recipe=context.recipe,
            attached=context.attached,
        )
        return {
            **asdict(hello),
            "spans": operations.document(),
            "control": asdict(self._window.control()),
            "collector_address": self._settings.collector_address,
            "trace_dir": str(self._folder) if self._folder else "",
            "stacks": self._stacks.document(),
            "flight_recorder": self._flight_recorder,
            **(dict([introduce()]) if introduce else {}),
        }


class _Line:
    """See channel.Line."""

    def __init__(self, plugin: ScanPlugin) -> None:
        self.write_frame = plugin._recorder.write_frame
        self.say = plugin._link.say
        self.received = plugin._link.received
        self.mark_step = plugin._phases.append
        self.enabled = lambda: plugin._window.enabled


def _end_of(step: _StepStart, phases: Iterable[Phase], progress: Progress | None) -> StepEnd:
    """The end of a step, which is now."""
    end = StepEnd(
        step=step.number,
        start_ns=step.start_ns,
        duration_ns=now_ns() - step.start_ns,
        cpu_ns=cpu_ns() - step.cpu_ns,
        traced=step.traced,
        phases=sum(1 << phase for phase in set(phases)),
    )
    if progress is None:
        return end
    values = (
        progress.loss,
        progress.learning_rate,
        progress.grad_norm,
        progress.tokens_per_second,
        progress.tflops_per_gpu,
    )
    known = sum(1 << bit for bit, value in enumerate(values) if value is not None)
    loss, rate, norm, speed, teraflops = (math.nan if value is None else value for value in values)
    return end._replace(
        known=known | layout.KNOWN_TOTAL_STEPS,
        loss=loss,
        learning_rate=rate,
        grad_norm=norm,
        tokens_per_second=speed,
        teraflops=teraflops,
        total_steps=progress.total_steps,
    )
