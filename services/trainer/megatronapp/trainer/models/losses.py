"""From a model's output to what is differentiated and what is logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state


def to_device(loaded: Mapping[str, Any], names: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
    """The named tensors of a microbatch."""
    return {name: loaded[name].to(device, non_blocking=True) for name in names}


def masked_loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss of a microbatch from the losses of its tokens, both [micro_batch_size, sequence_length].

    Returns the sum over the tokens that count, their number (the schedule divides by it), and both as one tensor [1, 2]
    for the log.
    """
    losses = losses.float()
    mask = mask.to(losses.dtype)
    total = torch.sum(losses * mask)
    tokens = mask.sum()
    logged = torch.stack([total.detach(), tokens])[None]
    return *_over_context(total, tokens), logged


def _over_context(total: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each rank's part of a sequence weighs by its tokens: the schedule divides by the number that it is told, and
    takes the mean over the ranks that share the sequence."""
    size = parallel_state.get_context_parallel_world_size() if parallel_state.is_initialized() else 1
    if size > 1:
        tokens = tokens.clone()
        dist.all_reduce(tokens, group=parallel_state.get_context_parallel_group())
    return total * size if size > 1 else total, tokens.to(torch.int)
