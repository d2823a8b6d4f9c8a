"""Experts of a rank whose products run in one kernel each: torch's grouped_mm, in place of a product an expert.

The experts themselves are megatron-core's SequentialMLP: their weights, names, first values and checkpoints are the
same with and without. For each pass their matrices are copied to lie side by side, as the kernel wants them; the copy
is freed at once, and made anew for the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.spec_utils import ModuleSpec


class GroupedExperts(SequentialMLP):
    """A layer's experts on this rank. Without biases."""

    def forward(
        self, permuted_local_hidden_states: torch.Tensor, tokens_per_expert: torch.Tensor, permuted_probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """[tokens, hidden], sorted by expert; [experts]; [tokens], the router's weights. Returns [tokens, hidden]."""
        counts = tokens_per_expert.tolist()
        if not any(counts):
            output, _ = super().forward(permuted_local_hidden_states, tokens_per_expert, permuted_probs)
            return output, None
        all_experts = SimpleNamespace(
            config=self.config,
            activation_func=self.local_experts[0].activation_func,
            linear_fc1=partial(self._product, "linear_fc1", counts),
            linear_fc2=partial(self._product, "linear_fc2", counts),
        )
        output, _ = MLP.forward(all_experts, permuted_local_hidden_states, permuted_probs)
        return output, None

    def _product(self, linear: str, counts: Sequence[int], tokens: torch.Tensor) -> tuple[torch.Tensor, None]:
        """What megatron-core's linear layers return: the product, and a bias."""
        weights = [_weight_for(getattr(expert, linear), tokens) for expert in self.local_experts]
        return GroupedProduct.apply(tokens, counts, *weights), None


def _weight_for(linear: torch.nn.Module, tokens: torch.Tensor) -> Any:
    """As a call of the layer would begin: with --overlap-param-gather its weight may still be on the way."""
    for hook in linear._forward_pre_hooks.values():
        hook(linear, (tokens,))
    return linear.weight


class GroupedProduct(torch.autograd.Function):
    """Each group of rows by the transpose of its own matrix: [rows, in], rows of each group, [out, in] a group."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: Sequence[int], *weights: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([*accumulate(counts)], dtype=torch.int32, device=rows.device)
        ctx.save_for_backward(rows, ends, *weights)
        ctx.counts = counts
        return F.grouped_mm(rows, torch.stack(weights).mT, offs=ends)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        rows, ends, *weights = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        grad_rows = F.grouped_mm(grad_output, torch.stack(weights), offs=ends)
        grad_weights = F.grouped_mm(grad_output.mT, rows, offs=ends)
        # Of a group without rows the kernel leaves memory as it was on some GPUs (pytorch issue 172439).
        of_groups = [grad if count else grad.zero_() for grad, count in zip(grad_weights, ctx.counts, strict=True)]
        return grad_rows, None, *of_groups


def with_grouped_experts(layer: ModuleSpec) -> ModuleSpec:
    """A mixture's layer, whose spec is megatron-core's local one, with these experts."""
    mlp = layer.submodules.mlp
    experts = replace(mlp.submodules.experts, module=GroupedExperts)
    grouped = replace(mlp, submodules=replace(mlp.submodules, experts=experts))
    return replace(layer, submodules=replace(layer.submodules, mlp=grouped))
