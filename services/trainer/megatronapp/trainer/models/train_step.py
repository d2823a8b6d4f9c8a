"""What is computed of one microbatch: its data, the model's output, the loss. A child of a family's own step changes
one of these three and keeps the others; `--train-step package:Class` puts it in place.

    class Weighted(GPTTrainStep):
        def __init__(self, settings: StepSettings, *, alpha: float) -> None:
            super().__init__(settings)
            self.alpha = alpha

        def loss_func(self, batch, output):
            total, tokens, logged = super().loss_func(batch, output)
            return total * self.alpha, tokens, logged
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig

if TYPE_CHECKING:
    import torch

LOSS = "loss"
"""Of the losses that a step names: the sum of the others, where there are others."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What a step is made with."""

    config: TrainerConfig
    device: torch.device


class TrainStep:
    """One microbatch on one chunk of the model, as megatron-core's schedules ask for it."""

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings

    def get_batch(self, iterator: Iterator[Mapping[str, Any]]) -> Any:
        """The next microbatch, on the device."""
        raise NotImplementedError

    def loss_func(self, batch: Any, output: Any) -> Any:
        """(loss, number of tokens, logged): a sum, what the schedule divides it by, and a tensor [losses, 2] of each
        loss's sum and over how many; or (mean loss, {name: mean loss}), which is logged averaged over microbatches and
        data ranks."""
        raise NotImplementedError

    def forward_step(self, iterator: Iterator[Mapping[str, Any]], model: torch.nn.Module) -> tuple[Any, Any]:
        """(output of the chunk, function from it to what `loss_func` returns). On a stage that is not the last one the
        function is not called."""
        raise NotImplementedError


class LoggedLosses:
    """The names of what a step's losses are logged as, and its `forward_step`, whose losses are all tensors then.

    Names are the family's; a loss function that returns a dict of losses brings its own.
    """

    def __init__(self, step: TrainStep, names: Sequence[str]) -> None:
        self._step = step
        self.names = tuple(names)

    def forward_step(self, iterator: Any, model: Any) -> tuple[Any, Any]:
        output, loss = self._step.forward_step(iterator, model)
        return output, loss and (lambda output, **options: self._as_tensors(loss(output, **options)))

    def _as_tensors(self, returned: Any) -> Any:
        if not (isinstance(returned, tuple) and returned and isinstance(returned[-1], Mapping)):
            return returned
        *loss, named = returned
        self.names = tuple(name for name in named if name != LOSS) or tuple(named)
        return *loss, _rows([named[name] for name in self.names], loss[0])


def _rows(values: Sequence[Any], loss: torch.Tensor) -> torch.Tensor:
    """[losses, 2]: a mean counts once; Megatron-LM's pairs of sum and number are taken as they are."""
    import torch

    rows = loss.new_ones((len(values), 2), requires_grad=False)
    for row, value in zip(rows, values, strict=True):
        given = torch.as_tensor(value, device=row.device).detach().to(row.dtype).flatten()
        row[: given.numel()] = given
    return rows


# ---- by import path


def train_step_class(path: str) -> type[TrainStep]:
    """Of `package.module:Class`. Raises UsageError."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UsageError(f"--train-step {path!r:.120}: give package.module:Class")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (ImportError, SyntaxError, TypeError, ValueError) as error:
        raise UsageError(
            f"--train-step {path!r:.120} can't be imported ({error}): is its folder in PYTHONPATH?"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, TrainStep)):
        raise UsageError(
            f"--train-step {path!r:.120} is no TrainStep: derive the class from one of megatronapp.trainer's, such as "
            "GPTTrainStep"
        )
    return found


def step_arguments(text: str | None) -> dict[str, Any]:
    """Of --train-step-kwargs. Raises UsageError."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--train-step-kwargs {text!r:.120} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--train-step-kwargs {text!r:.120}: give a JSON object, such as '{{\"alpha\": 0.25}}'")
    return values


def build_step(kind: type[TrainStep], settings: StepSettings, arguments: Mapping[str, Any]) -> TrainStep:
    """Raises UsageError where the class takes other arguments."""
    _check_arguments(kind, arguments)
    return kind(settings, **arguments)


def _check_arguments(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(kind).bind(None, **arguments)
    except TypeError as error:
        raise UsageError(f"--train-step-kwargs don't fit {getattr(kind, '__name__', kind)}: {error}") from error
