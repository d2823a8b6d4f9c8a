"""gc: runs of Python's garbage collector, in any thread of the process (the others wait for the interpreter)."""

from __future__ import annotations

import gc
import threading
from typing import Any

from megatronapp.trainer.plugins.scan.clock import cpu_ns, now_ns
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation


class GarbageHooks:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._thread = threading.get_ident()
        self._begin = self._begin_cpu = 0

    def install(self) -> None:
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._begin, self._begin_cpu = now_ns(), cpu_ns()
        elif self._begin and self._probe.on:
            cpu = cpu_ns() - self._begin_cpu if threading.get_ident() == self._thread else 0
            self._probe.recorder.add(Operation.GC, self._begin, now_ns(), cpu)
            self._begin = 0
