"""The plug-ins of a run as one, nested: the first is the outermost.

This is all through which a training run, the trainer's own loop or a script that it is attached to, tells plug-ins what
it does. Of megatron-core nothing is imported here: such a script may do without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Evaluation, Phase, Progress
from megatronapp.trainer.plugins.base import ForwardStep, Plugin, PluginContext, Preparation, Runner, ScheduleFunction
from megatronapp.trainer.plugins.generating import TextGenerator

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    from megatronapp.core.generation import Limits
    from megatronapp.core.generation_port import Port
    from megatronapp.trainer.batches import Batches

log = get_logger(__name__)


class PluginChain:
    """Calls every hook on every plug-in: what begins, outermost first; what wraps or ends, innermost first."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self.plugins = tuple(plugins)

    @classmethod
    def create(cls, kinds: Sequence[type[Plugin]], args: argparse.Namespace, context: PluginContext) -> PluginChain:
        """Those of the plug-ins that the flags turn on."""
        created = (kind.create(args, context) for kind in kinds)
        return cls([plugin for plugin in created if plugin is not None])

    @staticmethod
    def prepare(kinds: Sequence[type[Plugin]], args: argparse.Namespace, preparation: Preparation) -> Preparation:
        """What all of the plug-ins make of it, outermost first. Raises UsageError when the layout does not fit."""
        for kind in kinds:
            preparation = kind.prepare(args, preparation)
            layout, size = preparation.own_layout, preparation.world.size
            if layout is not None and (layout.ranks != size or layout.world != size):
                raise UsageError(f"the plug-in {kind.name} lays out {layout.ranks} ranks, but {size} were started")
        return preparation

    @property
    def names(self) -> list[str]:
        return [plugin.name for plugin in self.plugins]

    def configure(self, config: TransformerConfig) -> dict[str, dict[str, str]]:
        """Let them change it; returns by plug-in what changed of the model, as a recipe keeps it."""
        from megatronapp.trainer.model_settings import model_settings

        changes = {}
        for plugin in self.plugins:
            before = model_settings(config)
            plugin.configure(config)
            after = model_settings(config)
            changes[plugin.name] = {name: value for name, value in after.items() if before[name] != value}
        return changes

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for plugin in self.plugins:
            plugin.models(chunks)

    def runner(self, chunks: Sequence[torch.nn.Module], batches: Batches) -> Runner | None:
        """The first one's that has one."""
        runners = (plugin.runner(chunks, batches, self) for plugin in self.plugins)
        return next((runner for runner in runners if runner is not None), None)

    def training_begin(self, step: int, consumed_samples: int, *, loaded: bool) -> None:
        for plugin in self.plugins:
            plugin.training_begin(step, consumed_samples, loaded=loaded)

    def training_end(self) -> None:
        for plugin in reversed(self.plugins):
            plugin.training_end()

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        for plugin in reversed(self.plugins):
            function = plugin.forward_step(function)
        return function

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for plugin in reversed(self.plugins):
            iterator = plugin.data(iterator)
        return iterator

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        for plugin in reversed(self.plugins):
            function = plugin.schedule(function)
        return function

    def optimizer_built(self, optimizer: Any) -> None:
        for plugin in self.plugins:
            plugin.optimizer_built(optimizer)

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        for plugin in reversed(self.plugins):
            step = plugin.optimizer(step)
        return step

    def checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        for plugin in reversed(self.plugins):
            write = plugin.checkpoint(write)
        return write

    def step_begin(self, step: int) -> None:
        for plugin in self.plugins:
            plugin.step_begin(step)

    def step_end(self, step: int, progress: Progress | None) -> None:
        for plugin in reversed(self.plugins):
            plugin.step_end(step, progress)

    def phase_begin(self, phase: Phase) -> None:
        for plugin in self.plugins:
            plugin.phase_begin(phase)

    def phase_end(self, phase: Phase) -> None:
        for plugin in reversed(self.plugins):
            plugin.phase_end(phase)

    def evaluation(self, evaluation: Evaluation) -> None:
        for plugin in self.plugins:
            plugin.evaluation(evaluation)

    def border_due(self, step: int) -> bool:
        """Whether any of them comes to a border after this step."""
        due = [plugin.border_due(step) for plugin in self.plugins]
        return any(due)

    def border(self, step: int) -> bool:
        """Whether any of them changed parameters."""
        changed = [plugin.border(step) for plugin in self.plugins]
        return any(changed)

    def generator(self, generator: TextGenerator) -> None:
        for plugin in self.plugins:
            plugin.generator(generator)

    def port(self, limits: Limits) -> Port | None:
        """The first one's that has one."""
        ports = (plugin.port(limits) for plugin in self.plugins)
        return next((port for port in ports if port is not None), None)

    def failure(self, error: Exception) -> Exception:
        """The first one's that says more, else the error itself."""
        known = (plugin.failure(error) for plugin in self.plugins)
        return next((found for found in known if found is not None), error)

    def close(self) -> None:
        """Never raises: a plug-in that fails to close must not hide how training ended."""
        for plugin in reversed(self.plugins):
            try:
                plugin.close()
            except Exception:
                log.exception("plugin_close_failed", plugin=plugin.name)
