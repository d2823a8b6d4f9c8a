"""From a model's output to what is differentiated and what is logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


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
    return total, tokens.to(torch.int), torch.stack([total.detach(), tokens])[None]
