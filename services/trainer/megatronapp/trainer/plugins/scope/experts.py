"""What each expert adds to its tokens: rows that megatron-core's dispatchers put together again, in an order they know.

An expert's rows lie one behind the other, those of each in the order of their tokens, weighted by the router already.
Where they are whole depends on the dispatcher: `alltoall` brings the rows of all experts back to the rank that has the
tokens; with `allgather` a rank has those of its own experts, for the tokens of all expert-parallel ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher

from megatronapp.trainer.plugins.scope.places import EXPERT, OF_LAYER, Place


def place_in(dispatcher: Any) -> Place | None:
    """Where the rows are whole; None: nowhere. Sums over tensor ranks, which `allgather` adds up over experts at once,
    tokens cut for context parallelism, and rows in the order of a fused kernel or with padding are not told apart."""
    if not isinstance(dispatcher, MoEAllGatherTokenDispatcher | MoEAlltoAllTokenDispatcher):
        return None
    if getattr(dispatcher, "drop_and_pad", False) or getattr(dispatcher.config, "moe_permute_fusion", False):
        return None
    if isinstance(dispatcher, MoEAlltoAllTokenDispatcher):
        return replace(OF_LAYER[EXPERT], method="combine_postprocess")
    if dispatcher.tp_size == 1 and (dispatcher.ep_size == 1 or dispatcher.config.context_parallel_size == 1):
        return replace(OF_LAYER[EXPERT], method="combine_preprocess")
    return None


def rows_of(dispatcher: Any, *, alike: bool) -> torch.Tensor:
    """[token, batch, expert], int64: which row is of this token by this expert, −1: it goes to others. `alike`: ranks
    whose tokens were gathered have the same ones, as in a generation."""
    tokens, batch = dispatcher.hidden_shape[:2]
    gathered = isinstance(dispatcher, MoEAllGatherTokenDispatcher)
    chosen = (dispatcher.local_map if gathered else dispatcher.routing_map).bool()
    by_expert = chosen.T.reshape(-1)
    numbers = (by_expert.long().cumsum(0) - 1).masked_fill(~by_expert, -1).view(chosen.shape[1], -1, tokens, batch)
    ranks = numbers[:, :1] if alike else numbers  # [expert, rank, token, batch]
    return ranks.permute(2, 1, 3, 0).flatten(1, 2)
