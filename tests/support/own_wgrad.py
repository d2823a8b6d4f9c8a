"""Linear layers that put off their weights' gradients themselves, as Transformer Engine's do: it stands in for them.

As there, a bias is summed when its weight is. The gradient of one that the layer adds itself comes of W, of one that it
returns beside its output it has come in the backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import prepare_input_tensors_for_wgrad_compute

from megatronapp.trainer.pipeline.linears import OUTPUT_LAYER
from megatronapp.trainer.plugins.base import Plugin, PluginContext


class OwnWgrad(Plugin):
    """Stands in front of DppPlugin."""

    name: ClassVar[str] = "own_wgrad"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls()

    def configure(self, config: TransformerConfig) -> None:
        config.delay_wgrad_compute = True

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for name, layer in (each for chunk in chunks for each in chunk.named_modules()):
            if isinstance(layer, ColumnParallelLinear | RowParallelLinear) and not name.endswith(OUTPUT_LAYER):
                _put_off(layer)
            elif name.endswith("core_attention"):  # has the methods of all layers there, and nothing to put off
                layer.register_wgrad_accumulation_and_reduce_hooks = [].append
                layer.wgrad_store = None


def _put_off(layer: Any) -> None:
    hooks: list[Callable[[], None]] = []
    queue: Queue[tuple[torch.Tensor, torch.Tensor]] = Queue()
    parameters = [each for each in (layer.weight, layer.bias) if each is not None]

    def backward_dw() -> None:
        gradient, input_ = prepare_input_tensors_for_wgrad_compute(*queue.get_nowait())
        layer.weight.grad = gradient.t().matmul(input_)
        if layer.bias is not None and layer.bias.grad is None:
            layer.bias.grad = gradient.sum(dim=0)
        for hook in hooks:
            hook()

    layer.gradient_accumulation_fusion = True  # which nobody else splits
    for parameter in parameters:
        parameter.skip_backward_post_hook = True
    layer.wgrad_store = SimpleNamespace(context=queue)
    layer.backward_dw = backward_dw
    layer.register_wgrad_accumulation_and_reduce_hooks = hooks.append
    layer._forward_impl = partial(_forward, queue=queue)


def _forward(
    input: torch.Tensor,  # noqa: A002  (megatron-core passes it by this name)
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    queue: Any,
    **others: Any,
) -> Any:
    return _Linear.apply(input, weight, bias, queue)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, queue: Any) -> Any:
        ctx.save_for_backward(input_, weight)
        ctx.queue = queue
        output = torch.matmul(input_, weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input_, weight = ctx.saved_tensors
        ctx.queue.put((gradient, input_))
        return gradient.matmul(weight), None, None, None
