"""The faults that wait: a busy host, a late message, late data, and what never comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from megatronapp.trainer.pipeline.native import NativeTransport
from megatronapp.trainer.pipeline.port import Handle, Message, PipelineMessages

ENDLESS_CYCLES = 1 << 62
CALIBRATION_CYCLES = 10_000_000
GRADIENT_TIMER = "all-grads-sync"


def keep_host_busy(seconds: float) -> None:
    """Hold the training thread, and with it Python, for so much wall time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def stand_still() -> NoReturn:
    """Block the calling thread without using its CPU. Only a signal that ends the process ends this."""
    while True:
        time.sleep(3600)


class Delay:
    """Makes what comes next on this rank's device late: the thread on a CPU, the current stream on a GPU.

    A thread that slept would not do on a GPU, as it runs ahead of the device and the sleep would cost nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._cycles_per_second = _cycles_per_second() if device.type == "cuda" else 0.0

    def __call__(self, seconds: float) -> None:
        if self._cycles_per_second:
            torch.cuda._sleep(int(seconds * self._cycles_per_second))
        else:
            time.sleep(seconds)


def _cycles_per_second() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CALIBRATION_CYCLES)
    begin.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    return CALIBRATION_CYCLES / (float(begin.elapsed_time(end)) / 1e3)


class LateLink:
    """Messages that leave this rank's stage come late by `seconds`; the rank itself goes on.

    A transport that needs one order can't hold a message back alone: there it is an Observer that waits where a message
    is about to be handed over. A schedule that overlaps its messages then stands still on its host. Without a pipeline
    the rank's only link is that of the gradients: it is a TimerListener that waits before their reduction.
    """

    def __init__(self, device: torch.device, pipeline: PipelineMessages | None) -> None:
        self.seconds = 0.0
        self._delay = Delay(device)
        self._pipeline = pipeline
        if pipeline is None:
            return
        if isinstance(pipeline.transport, NativeTransport):
            pipeline.transport.late_seconds = lambda _: self.seconds
        else:
            pipeline.observe(self)

    def close(self) -> None:
        if self._pipeline is not None and self in self._pipeline.observers:
            self._pipeline.forget(self)

    def start(self, name: str) -> None:
        if self.seconds and self._pipeline is None and name == GRADIENT_TIMER:
            self._delay(self.seconds)

    def stop(self, name: str) -> None:
        """The wait is over when the gradients go."""

    def posting(self, messages: Sequence[Message]) -> None:
        if self.seconds and any(message.sends for message in messages):
            self._delay(self.seconds)

    def posted(self, messages: Sequence[Message], handle: Handle) -> None:
        """It is on its way."""

    def waiting(self, messages: Sequence[Message]) -> None:
        """A receiver's matter."""

    def ended(self, messages: Sequence[Message]) -> None:
        """A receiver's matter."""

    def idling(self) -> None:
        """A receiver's matter."""


class ComputeHang:
    """A TimerListener that makes the rank compute for ever in its next forward pass: no collective comes after it."""

    def __init__(self, device: torch.device) -> None:
        self.active = False
        self._device = device

    def start(self, name: str) -> None:
        """The pass itself still runs."""

    def stop(self, name: str) -> None:
        if not self.active or name != "forward-compute":
            return
        if self._device.type == "cuda":
            torch.cuda._sleep(ENDLESS_CYCLES)
            return
        matrix = torch.eye(64)
        while True:
            torch.mm(matrix, matrix)


class LateData:
    """Makes the first microbatch that this rank reads in a step come late by `seconds`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """`iterator` of one model chunk; all chunks of the rank share one delay. A rank whose data is not late does not
        sleep for no time either: that gives the processor away, and on a busy host for milliseconds."""
        while True:
            seconds, self.seconds = self.seconds, 0.0
            if seconds:
                time.sleep(seconds)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            yield batch
