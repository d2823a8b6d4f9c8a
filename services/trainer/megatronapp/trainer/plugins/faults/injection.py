"""Which faults of a scenario hit this rank, and when they act."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.scenario import PROGRAM, Fault, FaultKind, HangSide, Scenario
from megatronapp.core.trace.values import ParallelSizes
from megatronapp.trainer.plugins.base import PluginContext, TimerListener
from megatronapp.trainer.plugins.faults.collectives import WrongCollective
from megatronapp.trainer.plugins.faults.compute import slow_compute
from megatronapp.trainer.plugins.faults.waits import ComputeHang, LateData, LateLink, keep_host_busy, stand_still

log = get_logger(__name__)


class Injection:
    @classmethod
    def of(cls, file: Path, context: PluginContext) -> Self | None:
        """None where no fault hits this rank. Raises UsageError, and ConfigError for a file that can't be read."""
        scenario = Scenario.load(file)
        check_targets(scenario, context.placement.sizes)
        rank, place = context.identity.rank, context.placement
        mine = [f for f in scenario.faults if f.hits(rank=rank, stage=place.pipeline, node=place.node)]
        return cls(mine, f"{scenario.seed}/{rank}", context) if mine else None

    def __init__(self, faults: list[Fault], seed: str, context: PluginContext) -> None:
        self._faults = faults
        self._random = random.Random(seed)
        self._acting: set[FaultKind] = set()
        self._compute = slow_compute(context.device)
        self._link = LateLink(context.device, context.pipeline)
        self._hang = ComputeHang(context.device)
        self._data = LateData()
        self._collective = WrongCollective()
        self._listeners: tuple[TimerListener, ...] = (self._compute, self._link, self._hang)
        # Last of all listeners: what is injected lies inside the spans that the others measure.
        context.timers.listeners.extend(self._listeners)
        self._timers = context.timers

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return self._data.wrap(iterator)

    def step_begin(self, step: int) -> None:
        active = [fault for fault in self._faults if fault.active(step)]
        self._log_first(step, {fault.kind for fault in active})
        self._compute.extra = self._size(active, FaultKind.SLOW_COMPUTE)
        self._link.seconds = self._size(active, FaultKind.LATE_LINK)
        self._data.seconds = self._size(active, FaultKind.DATA_STALL)
        hangs = {fault.side or HangSide.DEVICE for fault in active if fault.kind is FaultKind.HANG}
        self._hang.active = HangSide.DEVICE in hangs
        for kind in (fault.kind for fault in active if fault.kind in PROGRAM):
            self._collective.arm(kind)
        if any(fault.kind is FaultKind.KILL for fault in active):
            os.kill(os.getpid(), signal.SIGKILL)
        if HangSide.HOST in hangs:
            stand_still()
        keep_host_busy(self._size(active, FaultKind.HOST_STALL))

    def close(self) -> None:
        self._collective.close()
        self._link.close()
        for listener in self._listeners:
            self._timers.listeners.remove(listener)

    def _size(self, active: list[Fault], kind: FaultKind) -> float:
        """Seconds, or extra work over base work, of all active faults of a kind together."""
        total = 0.0
        for fault in active:
            if fault.kind is kind:
                size = fault.effect_ratio - 1 if fault.effect_ratio else fault.seconds or 0.0
                total += size * (1 + fault.jitter_ratio * self._random.uniform(-1, 1))
        return total

    def _log_first(self, step: int, acting: set[FaultKind]) -> None:
        """Log a kind's first step; those that act in every n-th step only would fill the log."""
        for kind in sorted(acting - self._acting):
            log.warning("fault_injected", kind=str(kind), step=step)
        self._acting |= acting


def check_targets(scenario: Scenario, sizes: ParallelSizes) -> None:
    """Raises UsageError for a fault that could never act."""
    for number, fault in enumerate(scenario.faults, start=1):
        for what, values, size in (("rank", fault.ranks, sizes.world), ("stage", fault.stages, sizes.pipeline)):
            outside = [value for value in values if value >= max(size, 1)]
            if outside:
                raise UsageError(f"--fault-scenario: fault {number} names {what} {outside[0]}, but there are {size}")
