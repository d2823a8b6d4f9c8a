"""Logs the norm of each layer's weights every so many steps: the worked example of docs/plugins.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.plugins.base import Plugin, PluginContext

log = get_logger(__name__)


class WeightNorms(Plugin):
    """Asks for a border at each multiple of the interval: there every rank holds the newest weights and is at hand for
    a collective over the tensor-parallel ranks, whose parts of a layer count together."""

    name: ClassVar[str] = "weight_norms"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("Weight norms")
        group.add_argument("--weight-norm-interval", type=int, default=0, help="steps between norms; 0: off")

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        if args.weight_norm_interval < 0:
            raise UsageError(f"--weight-norm-interval {args.weight_norm_interval} is too small: the least is 0")
        return cls(args.weight_norm_interval, context) if args.weight_norm_interval else None

    def __init__(self, interval: int, context: PluginContext) -> None:
        self._interval = interval
        self._context = context
        self._layers: dict[int, torch.nn.Module] = {}

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        """Layers are numbered from 1 over the whole model; this rank has those of its stage."""
        modules = [module for chunk in chunks for module in chunk.modules()]
        self._layers = {int(m.layer_number): m for m in modules if type(m).__name__ == "TransformerLayer"}

    def step_begin(self, step: int) -> None:
        """A border comes after the step that follows the one in which it was asked for."""
        if (step + 1) % self._interval == 0 and self._context.identity.rank == 0:
            self._context.request_border()

    def border(self, step: int) -> bool:
        if step % self._interval:
            return False  # somebody else's
        norms = {number: _norm(self._layers[number]) for number in sorted(self._layers)}
        place = self._context.placement
        if place.tensor == place.data == place.context == 0:
            log.info("weight_norms", step=step, layers={number: round(norm, 6) for number, norm in norms.items()})
        return False


def _norm(layer: torch.nn.Module) -> float:
    """Of the whole layer, over the tensor-parallel ranks, each of which has a part of it. All of them call it."""
    group = parallel_state.get_tensor_model_parallel_group()
    parameters = list(layer.parameters())
    square = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for parameter in parameters:
        # What is not cut into parts stands on every rank, and is counted on one.
        if getattr(parameter, "tensor_model_parallel", False) or group.rank() == 0:
            square += parameter.detach().double().square().sum()
    dist.all_reduce(square, group=group)
    return float(square.sqrt())
