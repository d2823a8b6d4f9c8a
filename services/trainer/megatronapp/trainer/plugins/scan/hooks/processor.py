"""processor_probe: on a CPU rank a tiny fixed piece of work before each pass, whose CPU time tells how fast the
processor is just then. What shares its core or its caches makes the pass and the probe slower alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

ROWS = 48
"""Of a product's matrices: three of them fit into a first-level cache."""
PRODUCTS = 4
"""Some 20 µs."""


class ProcessorHooks:
    """To be installed after those that record passes: the probe comes before the pass, not in it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._patches = Patches()
        self._matrix = torch.eye(ROWS)
        self._product = torch.empty_like(self._matrix)

    def install(self) -> None:
        from megatron.core.pipeline_parallel import schedules

        for name in ("forward_step", "backward_step"):
            self._patches.set(schedules, name, self._after_probe(getattr(schedules, name)))

    def remove(self) -> None:
        self._patches.restore()

    def _after_probe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._probe.on:
                self.work()
            return function(*args, **kwargs)

        return step

    def work(self) -> None:
        self._probe.recorder.begin(Operation.PROCESSOR_PROBE)
        for _ in range(PRODUCTS):
            torch.mm(self._matrix, self._matrix, out=self._product)
        self._probe.recorder.end()
