"""What each expert makes of its tokens: rows that megatron-core's dispatchers order by expert, in an order they know.

An expert's rows lie one behind the other, those of each in the order of their tokens. Within the experts they are what
goes into the second product, weighted by the router already. What comes out is whole where the dispatcher brings it:
`alltoall` brings the rows of all experts back to the rank that has the tokens; with `allgather` a rank has those of its
own experts, for the tokens of all expert-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher

from megatronapp.trainer.models.grouped_experts import GroupedExperts
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scope.places import EXPERT, EXPERT_ACT, OF_LAYER, Place


def place_in(dispatcher: Any) -> Place | None:
    """Where rows that come out are whole; None: nowhere. Sums over tensor ranks, which `allgather` adds up over experts
    at once, are not told apart."""
    if not _is_in_order(dispatcher):
        return None
    if isinstance(dispatcher, MoEAlltoAllTokenDispatcher):
        return replace(OF_LAYER[EXPERT], method="combine_postprocess")
    return replace(OF_LAYER[EXPERT], method="combine_preprocess") if dispatcher.tp_size == 1 else None


def activation_place_in(mlp: Any) -> Place | None:
    """Where there are activations of experts; None: nowhere. Under `alltoall` a rank does not know whose tokens came
    from others. Experts other than one MLP each hold theirs within a kernel, or beside padding."""
    dispatcher: Any = getattr(mlp, "token_dispatcher", None)
    experts = getattr(mlp, "experts", None)
    if not _is_in_order(dispatcher) or not isinstance(experts, SequentialMLP):
        return None
    if getattr(experts.config, "fp8", None) or getattr(experts.config, "fp4", None):
        return None  # padded
    if isinstance(dispatcher, MoEAlltoAllTokenDispatcher):
        return OF_LAYER[EXPERT_ACT] if dispatcher.tp_size * dispatcher.ep_size == 1 else None
    tensors = parallel_state.get_tensor_model_parallel_world_size()
    return OF_LAYER[EXPERT_ACT] if dispatcher.tp_size == tensors else None


def _is_in_order(dispatcher: Any) -> bool:
    """Whether rows can be told by their tokens: not those in the order of a fused kernel or with padding, nor of tokens
    that are gathered from ranks which share a sequence."""
    if not isinstance(dispatcher, MoEAllGatherTokenDispatcher | MoEAlltoAllTokenDispatcher):
        return False
    if getattr(dispatcher, "drop_and_pad", False) or getattr(dispatcher.config, "moe_permute_fusion", False):
        return False
    stays = isinstance(dispatcher, MoEAlltoAllTokenDispatcher) or dispatcher.ep_size == 1
    return stays or dispatcher.config.context_parallel_size == 1


def on_activations(
    experts: SequentialMLP, patches: Patches, active: Callable[[], bool], show: Callable[[torch.Tensor], None]
) -> None:
    """Has `show` called after a pass through these experts while `active`, with [row, chan]: the inputs of their second
    products, one expert's behind the other's."""
    seen: list[torch.Tensor] = []
    forward = experts.forward

    def with_all(*args: Any, **kwargs: Any) -> Any:
        seen.clear()
        output = forward(*args, **kwargs)
        if seen:
            show(torch.cat(seen))
            seen.clear()
        return output

    def keep(rows: torch.Tensor) -> None:
        if active():
            seen.append(rows.detach())

    patches.set(experts, "forward", with_all)
    for expert in experts.local_experts:
        patches.set(expert.linear_fc2, "forward", _kept(expert.linear_fc2.forward, keep))
    if isinstance(experts, GroupedExperts):
        product = experts._product

        def kept_product(linear: str, counts: Any, rows: torch.Tensor) -> Any:
            if linear == "linear_fc2":
                keep(rows)
            return product(linear, counts, rows)

        patches.set(experts, "_product", kept_product)


def _kept(forward: Callable[..., Any], keep: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    def wrapped(rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keep(rows)
        return forward(rows, *args, **kwargs)

    return wrapped


def rows_of(dispatcher: Any, *, alike: bool) -> torch.Tensor:
    """[token, batch, expert], int64: which row is of this token by this expert, −1: it goes to others. `alike`: ranks
    whose tokens were gathered have the same ones, as in a generation."""
    tokens, batch = dispatcher.hidden_shape[:2]
    gathered = isinstance(dispatcher, MoEAllGatherTokenDispatcher)
    chosen = (dispatcher.local_map if gathered else dispatcher.routing_map).bool()
    by_expert = chosen.T.reshape(-1)
    numbers = (by_expert.long().cumsum(0) - 1).masked_fill(~by_expert, -1)
    # Of tensor ranks, which are neighbours, each has brought its part of the tokens.
    tensors = dispatcher.tp_size if gathered else 1
    of_ranks = numbers.view(chosen.shape[1], -1, tensors, tokens, batch)
    of_ranks = of_ranks[:, :1, :1] if alike else of_ranks
    return of_ranks.permute(2, 3, 1, 4, 0).flatten(2, 3).flatten(0, 1)
