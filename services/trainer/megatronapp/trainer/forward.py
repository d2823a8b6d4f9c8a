"""The forward pass of one microbatch on one model chunk, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.utils import get_batch_on_this_cp_rank, unwrap_model

_TENSORS = ("tokens", "labels", "loss_mask", "position_ids")


def build_forward_step(device: torch.device) -> Callable[..., Any]:
    """The function that megatron-core's schedules call for each microbatch and chunk."""

    def forward_step(iterator: Iterator[dict[str, Any]], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
        chunk = unwrap_model(model)
        if not (chunk.pre_process or chunk.post_process):
            return model(None, None, None), None
        loaded = next(iterator)
        batch = {key: loaded[key].to(device, non_blocking=True) for key in _TENSORS}
        batch = get_batch_on_this_cp_rank(batch)
        output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        return output, partial(masked_loss, batch["loss_mask"])

    return forward_step


def masked_loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss of a microbatch from the losses of its tokens, both [micro_batch_size, sequence_length].

    Returns the sum over the tokens that count, their number (the schedule divides by it), and both as one tensor [2]
    for the log.
    """
    losses = losses.float()
    mask = mask.to(losses.dtype)
    total = torch.sum(losses * mask)
    tokens = mask.sum()
    return total, tokens.to(torch.int), torch.stack([total.detach(), tokens])
