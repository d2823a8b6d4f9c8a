"""The logits of a step's microbatches, from the last stage's output layer while it computes the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region


@contextmanager
def collected(chunks: Sequence[torch.nn.Module], vocabulary: int) -> Iterator[list[torch.Tensor]]:
    """Gathers [rows, sequence, vocabulary] of each microbatch, on the ranks of the last stage; of the others nothing.
    `vocabulary` is without padding."""
    found: list[torch.Tensor] = []

    def take(_module: Any, _given: Any, output: Any) -> None:
        of_rank = output[0] if isinstance(output, tuple) else output
        whole = gather_from_tensor_model_parallel_region(of_rank.detach())
        found.append(whole[..., :vocabulary].transpose(0, 1).contiguous())

    heads = [head for chunk in chunks if chunk.post_process and (head := _head(chunk)) is not None]
    handles = [head.register_forward_hook(take) for head in heads]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _head(chunk: torch.nn.Module) -> torch.nn.Module | None:
    """The module that gives logits: T5's is called otherwise."""
    head = getattr(chunk, "output_layer", None) or getattr(chunk, "lm_head", None)
    return head if isinstance(head, torch.nn.Module) else None
