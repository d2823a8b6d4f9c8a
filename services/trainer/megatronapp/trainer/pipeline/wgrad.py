"""B split from W: what a backward pass does not need at once, the gradients of linear layers' weights, is done later.

A linear layer of megatron-core's local implementation calls its attribute `_forward_impl`. The one that is put in its
place computes the same output, and in its backward pass the gradient of the input (B) alone; it keeps the input and the
gradient of the output. W multiplies these two and adds the product to `main_grad`, as megatron-core's hook does: the
same sum, bit for bit, as W of a chunk's microbatches run in their order. Biases, norms, embeddings and the output layer
stay in B.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.utils import prepare_input_tensors_for_wgrad_compute

OUTPUT_LAYER = "output_layer"
PUT_OFF = "skip_backward_post_hook"
"""megatron-core's mark of a weight whose gradient does not come out of the backward pass: no hook waits for it."""
Place = tuple[int, int]
"""(chunk, microbatch)"""


class DeferredWgrad:
    """Weight gradients that are still to be computed, by chunk and microbatch."""

    def __init__(self) -> None:
        self._pending: defaultdict[Place, list[tuple[Any, torch.Tensor, torch.Tensor]]] = defaultdict(list)
        self._place: Place = (0, 0)

    def install(self, chunks: Sequence[torch.nn.Module]) -> None:
        """Into models of one tensor-parallel rank that are not wrapped yet."""
        for chunk in chunks:
            for name, module in chunk.named_modules():
                splits = isinstance(module, ColumnParallelLinear | RowParallelLinear)
                if splits and not name.endswith(OUTPUT_LAYER) and module.weight.requires_grad:
                    module._forward_impl = partial(_linear, deferred=self)
                    setattr(module.weight, PUT_OFF, True)

    @contextmanager
    def backward_of(self, chunk: int, microbatch: int) -> Iterator[None]:
        """What backward passes in it put off belongs to this microbatch."""
        self._place = chunk, microbatch
        yield

    def put_off(self, weight: torch.Tensor, input_: torch.Tensor, grad_output: torch.Tensor) -> None:
        """input_, grad_output: (tokens, width)"""
        self._pending[self._place].append((weight, input_, grad_output))

    def run(self, chunk: int, microbatch: int) -> None:
        """W of a microbatch."""
        with torch.no_grad():
            for weight, input_, grad_output in self._pending.pop((chunk, microbatch), ()):
                weight.main_grad.add_(grad_output.t().matmul(input_))


def _linear(
    input: torch.Tensor,  # noqa: A002  (megatron-core passes it by this name)
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    deferred: DeferredWgrad,
    **_: Any,
) -> torch.Tensor:
    output: torch.Tensor = _Linear.apply(input, weight, bias, deferred)
    return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input_: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, deferred: DeferredWgrad
    ) -> torch.Tensor:
        ctx.save_for_backward(input_)
        ctx.weight, ctx.has_bias, ctx.deferred = weight, bias is not None, deferred
        output = torch.matmul(input_, weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        (input_,) = ctx.saved_tensors
        grad_input = grad_output.matmul(ctx.weight)
        flat_grad, flat_input = prepare_input_tensors_for_wgrad_compute(grad_output, input_)
        ctx.deferred.put_off(ctx.weight, flat_input, flat_grad)
        return grad_input, None, flat_grad.sum(dim=0) if ctx.has_bias else None, None
