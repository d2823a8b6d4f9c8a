"""The seam of megatron-core's linear layers: who computes their products, and when the gradients of their weights.

A layer of the local implementation (column- or row-parallel, experts' of SequentialMLP too) calls its attribute
`_forward_impl` with what its products need. `route_linears` puts a function there that asks a port before each forward
pass: the pass is either megatron-core's own, or its matrix product comes through the port, and in its backward pass
the port says which weight gradients (W) are computed now. The gradient of the input, and the collectives of tensor and
of sequence parallelism, are as in megatron-core: bit for bit the same sums, also of W if each weight's W run in the
order in which they became possible.

megatron-core hides a collective behind each product: the gather of W's sequence-parallel input behind the product that
makes the gradient of the input, and the reduction of this gradient over tensor-parallel ranks behind W. Here likewise:
`take` is told whether there is such a reduction, and what it returns runs while that is under way.

The port has to answer alike on all tensor-parallel ranks: a gather belongs to W, where there is one. What stays whole:
the output layer, whose put off W would hold the gradient of all logits; norms, biases, embeddings and routers, which
are small; grouped experts, whose kernel does both gradients at once; Transformer Engine's layers, which have a way of
their own (wgrad.py); weights whose gradients are fused with their sum (`gradient_accumulation_fusion`), and frozen
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import layers
from megatron.core.utils import prepare_input_tensors_for_wgrad_compute

OUTPUT_LAYER = "output_layer"
Product = Callable[[], torch.Tensor]


class Wgrad:
    """W of one pass through one layer: the product of input and gradient of the output is added to `main_grad`.

    input: (sequence, batch, width) or (tokens, width), this rank's part of the sequence where `gathered_over` is a
    group; grad_output: the same tokens (all of the sequence), (…, output width).
    """

    def __init__(
        self, weight: Any, input_: torch.Tensor, grad_output: torch.Tensor, gathered_over: dist.ProcessGroup | None
    ) -> None:
        self.weight = weight
        self._input, self._grad_output, self._group = input_, grad_output, gathered_over
        self._gather: dist.Work | None = None

    def begin(self) -> None:
        """Start the gather of the input, if there is one: what the caller does next hides it."""
        if self._group is not None:
            part, self._input = self._input, _whole_sequence(self._input, self._group)
            self._gather = layers.dist_all_gather_func(self._input, part, group=self._group, async_op=True)

    def run(self) -> None:
        """After `begin`."""
        if self._gather is not None:
            self._gather.wait()
        grad_output, input_ = prepare_input_tensors_for_wgrad_compute(self._grad_output, self._input)
        with torch.no_grad():
            self.weight.main_grad.add_(grad_output.t().matmul(input_))


class LinearsPort(Protocol):
    """Who decides."""

    def takes_part(self) -> bool:
        """Whether the forward pass of a layer that begins now goes through the port, or is megatron-core's own."""

    def output(self, product: Product) -> torch.Tensor:
        """The layer's output before its collectives: the product, or the same from elsewhere."""

    def take(self, wgrad: Wgrad, *, hides: bool) -> Sequence[Wgrad]:
        """W of a layer has become possible. Returns those that run now; a collective is under way meanwhile if `hides`.
        The others are the port's, which runs them before gradients are reduced."""


def route_linears(chunks: Sequence[torch.nn.Module], port: LinearsPort) -> None:
    """Through the port from here on: the linear layers of models of the local implementation."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            is_linear = isinstance(module, layers.ColumnParallelLinear | layers.RowParallelLinear)
            if is_linear and not name.endswith(OUTPUT_LAYER):
                module._forward_impl = partial(_forward, port=port, stock=module._forward_impl)


@dataclass(frozen=True, slots=True)
class _Call:
    """What a layer's pass does beside its products."""

    port: LinearsPort
    weight: Any
    group: Any
    reduces: bool
    """The gradient of the input is summed over the tensor-parallel ranks."""
    sequence_parallel: bool
    """The input is gathered and its gradient is reduced and scattered, over the same ranks."""


def _forward(
    input: torch.Tensor,  # noqa: A002  (megatron-core passes it by this name)
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    port: LinearsPort,
    stock: Callable[..., torch.Tensor],
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    gradient_accumulation_fusion: bool,
    tp_group: Any,
    **others: Any,
) -> torch.Tensor:
    splits = weight.requires_grad and not gradient_accumulation_fusion
    if splits and port.takes_part():
        call = _Call(port, weight, tp_group, allreduce_dgrad, sequence_parallel)
        output: torch.Tensor = _Linear.apply(input, bias, call)
        return output
    return stock(
        input=input, weight=weight, bias=bias, allreduce_dgrad=allreduce_dgrad, sequence_parallel=sequence_parallel,
        gradient_accumulation_fusion=gradient_accumulation_fusion, tp_group=tp_group, **others,
    )  # fmt: skip


class _Linear(torch.autograd.Function):
    """The weight is no input of it, so that nothing waits for the weight's gradient when a backward pass ends."""

    @staticmethod
    def forward(ctx: Any, input_: torch.Tensor, bias: torch.Tensor | None, call: _Call) -> torch.Tensor:
        ctx.save_for_backward(input_)
        ctx.call, ctx.has_bias = call, bias is not None

        def product() -> torch.Tensor:
            total = input_
            if call.sequence_parallel:
                total = _whole_sequence(input_, call.group)
                layers.dist_all_gather_func(total, input_, group=call.group)
            return torch.matmul(total, call.weight.t())

        output = call.port.output(product)
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        (input_,) = ctx.saved_tensors
        call: _Call = ctx.call
        own = Wgrad(call.weight, input_, grad_output, call.group if call.sequence_parallel else None)
        wgrads = call.port.take(own, hides=call.reduces or call.sequence_parallel)
        for each in wgrads:
            each.begin()
        grad_input, reduction = _reduced(grad_output.matmul(call.weight), input_, call)
        for each in wgrads:
            each.run()
        grad_bias = grad_output.reshape(-1, grad_output.shape[-1]).sum(dim=0) if ctx.has_bias else None
        if reduction is not None:
            reduction.wait()
        return grad_input, grad_bias, None


def _reduced(grad_input: torch.Tensor, input_: torch.Tensor, call: _Call) -> tuple[torch.Tensor, dist.Work | None]:
    """What becomes the gradient of the input, and the collective that is under way until then."""
    if call.sequence_parallel:
        scattered = torch.empty_like(input_, requires_grad=False)
        return scattered, layers.dist_reduce_scatter_func(scattered, grad_input, group=call.group, async_op=True)
    if call.reduces:
        return grad_input, dist.all_reduce(grad_input, group=call.group, async_op=True)
    return grad_input, None


def _whole_sequence(part: torch.Tensor, group: Any) -> torch.Tensor:
    return part.new_empty((part.shape[0] * group.size(), *part.shape[1:]))
