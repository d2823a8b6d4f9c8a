"""Activations that wait on the host for their backward pass.

What autograd saves within a layer's forward pass is copied to the host there, and back where backward asks for it: the
same numbers, so the same losses bit by bit. Weights stay. Copies are in the order of the device's own work, which waits
for them. On CPUs nothing is gained: a copy is made beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer

SMALL = 256
"""Elements up to which a tensor is not worth its copies."""
Kept = torch.Tensor | tuple[torch.device, torch.Tensor]


def offload_layers(chunk: torch.nn.Module, count: int) -> None:
    """Of the first `count` layers of each stack of the whole model, those that the chunk holds."""
    for module in chunk.modules():
        if isinstance(module, TransformerLayer) and module.layer_number <= count:
            module.forward = _offloading(module.forward)


def _offloading(forward: Callable[..., Any]) -> Callable[..., Any]:
    def on_the_host(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(_to_host, _back):
            return forward(*args, **kwargs)

    return on_the_host


def _to_host(tensor: torch.Tensor) -> Kept:
    if tensor.numel() <= SMALL or _is_weight(tensor):
        return tensor
    on_device = tensor.is_cuda
    copy = torch.empty_like(tensor, device="cpu", pin_memory=on_device)  # in memory it lies as the tensor does
    return tensor.device, copy.copy_(tensor, non_blocking=on_device)


def _back(kept: Kept) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    device, copy = kept
    return copy.to(device, non_blocking=True)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Or a view of one, as a transposed one is."""
    return isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
