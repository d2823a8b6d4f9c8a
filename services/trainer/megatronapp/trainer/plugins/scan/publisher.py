"""The side thread that turns what was recorded of a step into messages, when the device has done it all."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.logging import get_logger
from megatronapp.core.trace import columns
from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.operations import KINDS, NAMES
from megatronapp.trainer.plugins.scan.outbox import Outbox
from megatronapp.trainer.plugins.scan.recorder import Sealed, Spans
from megatronapp.trainer.plugins.scan.summary import summarize
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

WAIT_SECONDS = 0.2
MAX_BATCH_ROWS = 16_384
"""Keeps a message below the 4 MiB that a gRPC server takes by default."""

_KINDS = np.array(KINDS, np.uint8)
_COPIED = (
    *("communicator", "microbatch", "chunk", "layer", "peer", "sequence", "bytes", "tokens", "length_squares"),
    "message",
)


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step, as the training thread leaves it."""

    number: int
    start_ns: int
    duration_ns: int
    cpu_ns: int
    traced: bool
    phases: tuple[trace_pb2.Phase, ...]
    progress: trace_pb2.Progress | None
    recorded: Sealed


@dataclass
class Publisher:
    communicators: Communicators
    frontiers: Frontiers
    outbox: Outbox
    on_cuda: bool
    _steps: queue.SimpleQueue[Step | None] = field(default_factory=queue.SimpleQueue)
    _stop: threading.Event = field(default_factory=threading.Event)
    _communicators_sent: int = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="scan-publish", daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """From the training thread: costs an append."""
        self._steps.put(step)

    def close(self, timeout_seconds: float) -> None:
        """Publish what is there; what the device has not done by then is left out."""
        self._steps.put(None)
        self._thread.join(timeout_seconds)
        self._stop.set()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            while not step.recorded.wait(WAIT_SECONDS):
                if self._stop.is_set():
                    return
            # Before the step's events are used again.
            self.frontiers.poll()
            try:
                self._publish(step)
            except Exception:  # one step that can't be told must not silence the steps after it
                log.exception("step_not_published", step=step.number)

    def _publish(self, step: Step) -> None:
        spans = step.recorded.resolve()
        self.outbox.put(trace_pb2.TraceMessage(summary=self._summary(step, spans)))
        if step.traced:
            for batch in self._batches(step, spans):
                self.outbox.put(trace_pb2.TraceMessage(batch=batch))

    def _summary(self, step: Step, spans: Spans) -> trace_pb2.StepSummary:
        communicators = self.communicators.since(self._communicators_sent)
        self._communicators_sent += len(communicators)
        summary = trace_pb2.StepSummary(
            step=step.number,
            start_ns=step.start_ns,
            duration_ns=step.duration_ns,
            cpu_ns=step.cpu_ns,
            names=NAMES,
            communicators=communicators,
            phases=step.phases,
            progress=step.progress,
            dropped=self.outbox.dropped,
            traced=step.traced,
        )
        columns.fill_summary(summary, summarize(spans))
        return summary

    def _batches(self, step: Step, spans: Spans) -> list[trace_pb2.TraceBatch]:
        stream = np.where(spans.columns["stream"] > 0, spans.columns["stream"], (spans.enqueue > 0).astype(np.int64))
        table: dict[str, npt.NDArray[Any]] = {
            "start_ns": spans.start,
            "duration_ns": spans.duration,
            "enqueue_ns": spans.enqueue,
            "cpu_ns": spans.cpu,
            "name": spans.columns["name"],
            "kind": _KINDS[spans.columns["name"]],
            "stream": stream,
            **{name: spans.columns[name] for name in _COPIED},
        }
        batches = []
        for begin in range(0, max(len(spans), 1), MAX_BATCH_ROWS):
            batch = trace_pb2.TraceBatch(
                step=step.number,
                names=NAMES,
                reference_host_ns=spans.reference_ns,
                reference_error_ns=spans.reference_error_ns,
                dropped=self.outbox.dropped,
                last=begin + MAX_BATCH_ROWS >= len(spans),
            )
            columns.fill_spans(batch, {name: column[begin : begin + MAX_BATCH_ROWS] for name, column in table.items()})
            batches.append(batch)
        return batches
