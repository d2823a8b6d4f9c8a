"""What a script does, told to the plug-ins as the trainer's loop tells it.

Who knows where a step begins and ends says so: the script itself (`run.step()`), Megatron-LM's loop, or, without
either, its optimizer's step. Where nobody begins a step, what happens first in it does: data, a pass, the optimizer.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from megatronapp.core.trace.values import Evaluation, Phase, Progress
from megatronapp.trainer.attach.messages import say_once
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.plugins.base import Degree, TimerHub
from megatronapp.trainer.plugins.chain import PluginChain

if TYPE_CHECKING:
    from megatronapp.trainer.attach.announcement import Announcement
    from megatronapp.trainer.attach.scope import LateScope


class Bounds(IntEnum):
    """Who says where steps end; the highest that has spoken counts."""

    OPTIMIZER = 0
    LOOP = 1
    SCRIPT = 2


class Session:
    """One rank's, for its training thread."""

    def __init__(
        self,
        chain: PluginChain,
        timers: TimerHub,
        degree: Degree,
        messages: PipelineMessages | None = None,
        announcement: Announcement | None = None,
        scope: LateScope | None = None,
    ) -> None:
        """`degree`: full, or collectives, which a step that ends makes steps and collectives."""
        self.chain = chain
        self.timers = timers
        self.degree = degree
        self.messages = messages
        self.models: list[Any] | None = None
        """The model chunks as the script has them, once the plug-ins have seen them."""
        self.scope = scope
        """Where MegaScope is asked for, and can be."""
        self._optimizer_seen = False
        self.step = 0
        """The one that runs, or the last one."""
        self.bounds = Bounds.OPTIMIZER
        self._open = False
        self._phases: list[Phase] = []
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._announcement = announcement
        if announcement is not None:
            announcement.of_degree(degree)

    @property
    def here(self) -> bool:
        """Whether the caller is the training thread, and not one beside it or a process that was forked."""
        return not self._closed and threading.get_ident() == self._thread and os.getpid() == self._pid

    # ---- steps

    def begin(self, by: Bounds, number: int | None = None) -> None:
        """A step begins, if it has not, and if nobody who knows better says when. `number`: from 1."""
        if by < self.bounds:
            return
        self.bounds = by
        if self._open and number in (None, self.step):
            return
        if self._open:
            self.end(by)
        self.step = self.step + 1 if number is None else number
        self._open = True
        if self.messages is not None:
            self.messages.begin_step(self.step)
        self.chain.step_begin(self.step)

    def end(self, by: Bounds, progress: Progress | None = None) -> None:
        if by < self.bounds or not self._open:
            return
        self._open = False
        self.chain.step_end(self.step, progress)
        if self.scope is not None and not self.scope.after(self.step, self.chain, self.models or ()):
            self.scope = None
        if self.degree is Degree.COLLECTIVES:
            self._has_steps()

    def _has_steps(self) -> None:
        self.degree = Degree.STEPS
        if self._announcement is not None:
            self._announcement.of_degree(self.degree)

    # ---- what is trained

    def see_models(self, chunks: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Once, before the first step that is the schedule's. `given`: see LateScope.make."""
        from megatron.core.utils import unwrap_model

        if self.models is not None:
            return
        self.models = list(chunks)
        self.chain.models(unwrap_model(self.models))
        plugin = self.scope.make(self.models, given) if self.scope is not None else None
        if plugin is None:
            self.scope = None
            return
        scan, *others = self.chain.plugins
        self.chain = PluginChain([scan, plugin, *others])
        if self._open:
            plugin.step_begin(self.step)

    def see_optimizer(self, optimizer: Any) -> None:
        """Once; those parts of it that the plug-ins don't know are not seen."""
        if self._optimizer_seen:
            return
        self._optimizer_seen = True
        try:
            self.chain.optimizer_built(optimizer)
        except Exception as error:  # noqa: BLE001  (the script is not ours to stop)
            say_once(f"nothing is seen of the optimizer's states: {type(error).__name__}: {error}")

    # ---- inside of steps, and between them

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Inside, the run is in this phase. Of one that it is in already nothing is said again."""
        if phase in self._phases:
            yield
            return
        self._phases.append(phase)
        self.chain.phase_begin(phase)
        try:
            yield
        finally:
            self._phases.remove(phase)
            if not self._closed:
                self.chain.phase_end(phase)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Around what stands for one of megatron-core's timers."""
        timer = self.timers(name)
        timer.start()
        try:
            yield
        finally:
            timer.stop()

    def optimizer(self, step: Callable[[], Any]) -> Any:
        return self.chain.optimizer(step)()

    def evaluation(self, split: str, loss: float | None, microbatches: int) -> None:
        self.chain.evaluation(Evaluation(split=split, loss=loss, microbatches=microbatches, step=self.step))

    # ---- the end

    def pause(self) -> None:
        """The training is over: what comes now is no step, and ranks wait for each other in it."""
        self.chain.phase_begin(Phase.PAUSE)

    def close(self) -> None:
        """The last word of a rank that no error ends is a pause: by that the job's page tells finished from failed."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if not _fails():
            self.pause()
        if self._announcement is not None:
            self._announcement.close(self.degree)
        self.chain.close()


def _fails() -> bool:
    """Whether an error is ending the script here, or Python has told of one that did."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error is not None and not (isinstance(error, SystemExit) and not error.code)
