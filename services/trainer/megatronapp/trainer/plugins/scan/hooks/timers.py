"""grad_sync: from the first of megatron-core's timers around the finalization of gradients to the schedule's end."""

from __future__ import annotations

from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

FIRST, LAST = "all-grads-sync", "forward-backward"


class GradSyncListener:
    """A TimerListener."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._open = False

    def start(self, name: str) -> None:
        if name == FIRST and self._probe.on and not self._open:
            self._open = True
            self._probe.recorder.begin(Operation.GRAD_SYNC)

    def stop(self, name: str) -> None:
        if name == LAST and self._open:
            self._open = False
            self._probe.recorder.end()
