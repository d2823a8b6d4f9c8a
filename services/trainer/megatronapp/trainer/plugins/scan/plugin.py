"""MegaScan in the training process: the plug-in, and how its parts are put together."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from megatronapp.core.trace.values import Phase, Progress
from megatronapp.core.trace.wire import to_proto
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.scan import flags
from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.files import TraceFile
from megatronapp.trainer.plugins.scan.flags import ScanSettings
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.heartbeat import Heartbeat, Position
from megatronapp.trainer.plugins.scan.hooks.collectives import CollectiveHooks
from megatronapp.trainer.plugins.scan.hooks.data import TracedData
from megatronapp.trainer.plugins.scan.hooks.garbage import GarbageHooks
from megatronapp.trainer.plugins.scan.hooks.layers import LayerHooks
from megatronapp.trainer.plugins.scan.hooks.microbatches import MicrobatchHooks
from megatronapp.trainer.plugins.scan.hooks.p2p import P2PHooks
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.hooks.timers import GradSyncListener
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.outbox import Outbox, Sink
from megatronapp.trainer.plugins.scan.publisher import Publisher, Step
from megatronapp.trainer.plugins.scan.recorder import Recorder
from megatronapp.trainer.plugins.scan.recorders import make_recorder
from megatronapp.trainer.plugins.scan.stream import CollectorStream
from megatronapp.trainer.plugins.scan.telemetry import GpuTelemetry
from megatronapp.trainer.plugins.scan.window import WindowControl
from megatronapp.v1 import trace_pb2

FLUSH_SECONDS = 2.0
OPERATION_OF_PHASE = {
    Phase.EVALUATION: Operation.EVALUATE,
    Phase.CHECKPOINT: Operation.CHECKPOINT,
}


@dataclass(frozen=True, slots=True)
class _StepStart:
    number: int
    start_ns: int
    cpu_ns: int
    traced: bool


class ScanPlugin(Plugin):
    """Records what the rank does, summarises each step, and sends it to the collector and to files.

    Work on the training thread is limited to marks; everything else happens in side threads.
    """

    name: ClassVar[str] = "scan"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        flags.add_arguments(parser)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        settings = flags.parse(args, context.collector_address)
        return cls(settings, context) if settings else None

    def __init__(self, settings: ScanSettings, context: PluginContext) -> None:
        self._context = context
        self._on_cuda = context.device.type == "cuda"
        self._control = WindowControl(settings.window)
        self._position = Position()
        self._recorder: Recorder = make_recorder(context.device)
        self._communicators = Communicators()
        self._frontiers = Frontiers(self._recorder.done)
        self._probe = Probe(self._recorder, self._communicators, self._frontiers)
        self._outbox = Outbox(self._sinks(settings))
        self._publisher = Publisher(self._communicators, self._frontiers, self._outbox, self._on_cuda)
        self._telemetry = GpuTelemetry(context.placement.gpu_uuid) if self._on_cuda else None
        self._heartbeat = Heartbeat(
            self._recorder,
            self._frontiers,
            self._communicators,
            self._control,
            self._position,
            self._outbox,
            self._telemetry,
        )
        self._microbatches = MicrobatchHooks(self._probe)
        self._p2p = P2PHooks(self._probe, context.pipeline)
        self._hooks = (
            self._microbatches,
            self._p2p,
            CollectiveHooks(self._probe),
            GarbageHooks(self._probe),
        )
        self._layers = LayerHooks(self._probe)
        self._phases: list[Phase] = []
        self._current: _StepStart | None = None
        self._first = True
        self._closed = self._attached = False
        self._start()

    # -- what the trainer calls --

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._layers.models(chunks)

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return TracedData(self._probe, iterator)

    def step_begin(self, step: int) -> None:
        window = self._control.at_border()
        traced = window.contains(step)
        self._layers.attach(traced and window.full)
        self._microbatches.step_begin()
        self._probe.works.clear()
        self._position.step = step
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
        record = Step(
            number=step,
            start_ns=current.start_ns,
            duration_ns=now_ns() - current.start_ns,
            cpu_ns=cpu_ns() - current.cpu_ns,
            traced=current.traced,
            phases=tuple(dict.fromkeys(self._phases)),  # type: ignore[arg-type]
            progress=to_proto(progress) if progress else None,
            recorded=self._recorder.seal(),
        )
        self._phases.clear()
        self._publisher.put(record)
        self._position.leave(Phase.START)

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        probe = self._probe

        def traced_step() -> Any:
            if not probe.on:
                return step()
            probe.recorder.begin(Operation.OPTIMIZER)
            result = step()
            probe.recorder.end()
            return result

        return traced_step

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
        self._heartbeat.send_now()
        self._probe.on = False
        if phase in OPERATION_OF_PHASE:
            self._recorder.begin(OPERATION_OF_PHASE[phase])

    def phase_end(self, phase: Phase) -> None:
        if phase in OPERATION_OF_PHASE and self._recorder.depth():
            self._recorder.end()
        self._position.leave(phase)
        self._probe.on = self._current is not None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._probe.on = False
        self.detach()
        deadline = time.monotonic() + FLUSH_SECONDS
        self._publisher.close(FLUSH_SECONDS / 2)
        self._heartbeat.close()
        if self._telemetry is not None:
            self._telemetry.close()
        self._outbox.close(max(deadline - time.monotonic(), FLUSH_SECONDS / 4))

    # -- how it is put together --

    def _start(self) -> None:
        self._listeners = (GradSyncListener(self._probe), self._p2p)
        self.attach()
        self._publisher.start()
        self._heartbeat.start()

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
            for hooks in self._hooks:
                hooks.remove()
            for listener in self._listeners:
                self._context.timers.listeners.remove(listener)

    def _sinks(self, settings: ScanSettings) -> list[Sink]:
        sinks: list[Sink] = []
        if settings.folder is not None:
            sinks.append(TraceFile(settings.folder, to_proto(self._context.identity)))
            sinks[0].put(self._hello())
        if settings.collector_address:
            sinks.append(
                CollectorStream(
                    settings.collector_address,
                    hello=self._hello,
                    on_control=self._control.request,
                    token_file=self._context.token_file,
                )
            )
        return sinks

    def _hello(self) -> trace_pb2.TraceMessage:
        context = self._context
        return trace_pb2.TraceMessage(
            hello=trace_pb2.Hello(
                identity=to_proto(context.identity),
                placement=to_proto(context.placement),
                communicators=self._communicators.since(0),
                device=trace_pb2.DEVICE_CUDA if self._on_cuda else trace_pb2.DEVICE_CPU,
                schedule=to_proto(context.schedule),
                recipe=to_proto(context.recipe),
            )
        )
