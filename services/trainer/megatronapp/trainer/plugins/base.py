"""The plug-in protocol: everything a plug-in may hook, in the order in which the trainer calls it.

    add_arguments → create → configure → models → forward_step → data → schedule
        → (step_begin → [timers] → step_end | phase_begin → phase_end)* → phase_begin(pause) → close

Plug-ins nest: the first one discovered (scan) is the outermost, so that it sees what the others do. With none on,
no hook exists and training is stock megatron-core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from megatronapp.core.trace.values import Identity, Phase, Placement, Progress, Recipe, Schedule

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

ENTRY_POINT_GROUP = "megatronapp.trainer.plugins"
ORDER = ("scan", "scope", "dpp", "fbd", "faults")

ForwardStep = Callable[..., Any]
"""forward_step(data_iterator, model_chunk) -> (output, loss function), as megatron-core's schedules call it."""
ScheduleFunction = Callable[..., Any]
"""What megatron.core.pipeline_parallel.get_forward_backward_func() returns."""


class TimerListener(Protocol):
    """Told of megatron-core's named timers (`forward-compute`, `backward-recv`, `all-grads-sync`, …)."""

    def start(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...


@dataclass
class TimerHub:
    """`config.timers` for several listeners, nested: the first one starts first and stops last."""

    listeners: list[TimerListener] = field(default_factory=list)

    def __call__(self, name: str, log_level: int | None = None) -> _Timer:
        return _Timer(name, self.listeners)


@dataclass(slots=True)
class _Timer:
    name: str
    listeners: Sequence[TimerListener]

    def start(self, barrier: bool = False) -> None:
        for listener in self.listeners:
            listener.start(self.name)

    def stop(self, barrier: bool = False) -> None:
        for listener in reversed(self.listeners):
            listener.stop(self.name)


@dataclass(frozen=True)
class PluginContext:
    """What the trainer knows when distributed groups exist and no model is built yet."""

    identity: Identity
    placement: Placement
    schedule: Schedule
    device: torch.device
    timers: TimerHub
    collector_address: str
    token_file: str
    recipe: Recipe = field(default=Recipe())


class Plugin:
    """Base of all plug-ins; a hook that is not overridden changes nothing."""

    name: ClassVar[str]

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the plug-in's flags in a group of its own."""

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        """The plug-in for this run, or None when the flags leave it off. Raises UsageError on wrong flags."""
        raise NotImplementedError

    def configure(self, config: TransformerConfig) -> None:
        """Change the model's configuration before the model is built."""

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        """See the model chunks, one per virtual stage, before they are wrapped for data parallelism."""

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        """Wrap the forward step."""
        return function

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Wrap the iterator over this rank's microbatches (one per model chunk)."""
        return iterator

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        """Wrap or replace the pipeline schedule."""
        return function

    def step_begin(self, step: int) -> None:
        """Before a training step; steps count from 1 and go on over restarts."""

    def step_end(self, step: int, progress: Progress | None) -> None:
        """After the optimizer. `progress` is what the log says of this step, where this rank knows it."""

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the optimizer's step."""
        return step

    def checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the writing of this rank's part of a checkpoint; no other rank is waited for in it."""
        return write

    def phase_begin(self, phase: Phase) -> None:
        """Evaluation, a checkpoint or a pause begins, inside or between steps. The pause in which a run ends does not
        end itself."""

    def phase_end(self, phase: Phase) -> None:
        """It ended."""

    def close(self) -> None:
        """Training ended, well or not. Must not raise and must return within seconds."""


def discover() -> list[type[Plugin]]:
    """All installed plug-ins, outermost first; foreign ones come after ours, by name."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    names = [n for n in ORDER if n in found] + sorted(found.keys() - set(ORDER))
    return [found[name].load() for name in names]
