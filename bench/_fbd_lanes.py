"""What a rank's device and host spend a step on: R, B, W, sends and waits of MegaFBD, each without what is within it.

On a GPU a wait is the stream's: the host goes on. So each has two times, the device's and the host's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.split_cost import Clock
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.pipeline.dynamic_step import Step
from megatronapp.trainer.pipeline.linears import Wgrad
from megatronapp.trainer.plugins.fbd.backward import RecomputeStep
from megatronapp.trainer.plugins.fbd.forward import ForwardLoop, Neighbours, Outputs
from megatronapp.trainer.plugins.fbd.linears import ReceivedLinears, SentLinears
from megatronapp.trainer.plugins.fbd.link import Link
from megatronapp.trainer.plugins.fbd.plugin import BackwardPlugin
from megatronapp.trainer.plugins.fbd.weights import Receiving, Sending

STEP, F, OPTIMIZER = "step", "F", "optimizer"
LANES: tuple[tuple[type, str, str], ...] = (
    (RecomputeStep, "_next", "choose"),
    (RecomputeStep, "_post_receives", "post receives"),
    (RecomputeStep, "_forward", "R"),
    (RecomputeStep, "_backward", "B"),
    (RecomputeStep, "take_input", "wait input"),
    (Wgrad, "run", "W"),
    (Step, "_received", "wait gradient"),
    (Step, "finish", "reduce"),
    (ReceivedLinears, "received", "wait linears"),
    (Link, "wait_sent", "wait sent"),
    (Link, "hand_over", "hand over"),
    (BackwardPlugin, "step_begin", "say go"),
    (Sending, "send", "send weights"),
    (ForwardLoop, "_run_ahead", "F ahead"),
    (ForwardLoop, "_wait_for_go", "wait go"),
    (Receiving, "wait", "wait weights"),
    (Outputs, "send", "send input"),
    (SentLinears, "send", "send linears"),
    (Neighbours, "receive", "wait stage before"),
)
"""Methods, and what they are called here."""


@dataclass(slots=True)
class Moment:
    name: str
    begin: Any
    host_begin: float
    end: Any = None
    host_end: float = 0.0
    within: list[Moment] = field(default_factory=list)


class Lanes:
    """Counts while it is on."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._open: list[Moment] = []
        self._steps: list[Moment] = []
        self.on = False
        self.mark: Callable[[str], AbstractContextManager[Any]] = nullcontext
        """Is open while a lane of that name is."""
        patches = Patches()
        for owner, method, name in LANES:
            patches.set(owner, method, self.timed(name, getattr(owner, method)))

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._open:
                return call(*args, **kwargs)
            self._begin(name)
            try:
                with self.mark(name):
                    return call(*args, **kwargs)
            finally:
                self._end()

        return run

    def step_begin(self) -> None:
        """The step before ends here."""
        self.finish()
        if self.on:
            self._begin(STEP)

    def finish(self) -> None:
        if self._open:
            self._end()

    def seconds(self) -> dict[str, tuple[float, float]]:
        """(device, host) of a step, by lane; what is in none of them is the rest of STEP."""
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for step in self._steps:
            self._add(step, sums)
        count = max(len(self._steps), 1)
        return {name: (device / count, host / count) for name, (device, host) in sums.items()}

    def _begin(self, name: str) -> None:
        self._open.append(Moment(name, self._clock.now(), time.perf_counter()))

    def _end(self) -> None:
        moment = self._open.pop()
        moment.end, moment.host_end = self._clock.now(), time.perf_counter()
        (self._open[-1].within if self._open else self._steps).append(moment)

    def _add(self, moment: Moment, sums: dict[str, list[float]]) -> tuple[float, float]:
        whole = self._clock.seconds(moment.begin, moment.end), moment.host_end - moment.host_begin
        within = [self._add(each, sums) for each in moment.within]
        for index in range(2):
            sums[moment.name][index] += whole[index] - sum(each[index] for each in within)
        return whole
