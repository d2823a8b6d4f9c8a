"""forward, backward, grad_sync and optimizer of a program without megatron-core's schedules: the timers for them.

Its n-th forward of a step, and the n-th backward, are those of microbatch n.
"""

from __future__ import annotations

from collections.abc import Callable

from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

OPERATIONS = {
    "forward-compute": Operation.FORWARD,
    "backward-compute": Operation.BACKWARD,
    "all-grads-sync": Operation.GRAD_SYNC,
    "optimizer": Operation.OPTIMIZER,
}
PASSES = ("forward-compute", "backward-compute")
NOWHERE = (-1, -1)


class PassListener:
    """A TimerListener."""

    def __init__(self, probe: Probe, before: Callable[[], None]) -> None:
        """`before` is called before each pass."""
        self._probe = probe
        self._before = before
        self._open = ""
        self._passes = dict.fromkeys(OPERATIONS, 0)

    def step_begin(self) -> None:
        """Passes are counted anew."""
        self._open = ""
        self._passes = dict.fromkeys(OPERATIONS, 0)

    def start(self, name: str) -> None:
        if not self._probe.on or self._open or name not in OPERATIONS:
            return
        if name in PASSES:
            self._before()
            self._probe.microbatch = self._passes[name]
            self._probe.recorder.context(self._passes[name], 0)
        self._open = name
        self._passes[name] += 1
        self._probe.recorder.begin(OPERATIONS[name])

    def stop(self, name: str) -> None:
        if not self._open or name != self._open:
            return
        self._open = ""
        self._probe.recorder.end_work(*self._probe.works.get(self._probe.microbatch, (0, 0)))
        self._probe.recorder.context(*NOWHERE)
        self._probe.microbatch = -1
