"""Where each site is in megatron-core's layers, and which axes its tensor has there.

`core.scope.sites` says what a site is and how it is spread over ranks; here is how to get at it: a module's input or
output, or a method where there is no module. Layers are found by their global number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.identity_op import IdentityOp

from megatronapp.core.scope.sites import TOKENS
from megatronapp.trainer.plugins.scope.saes import Sae

INPUT, OUTPUT, BIASED = "input", "output", "output with its bias"
"""megatron-core's linear modules return (value, bias) and leave the addition to who comes next."""
Dims = tuple[tuple[str, ...], ...]
"""The axes of each dimension as the model has it; the last one of `context` holds heads and their channels."""

QKV = "get_query_key_value_tensors"
"""Of an attention: queries, keys and values as they come from the projection, before rotation."""
RESULT = "attn.result"
"""What each head adds to the residual stream."""
EXPERT_ACT = "experts.act"
"""What goes into each expert's second product, of its tokens."""
EXPERT = "experts.out"
"""What each expert adds to its tokens."""
LOGITS = "logits"
LOSS = "loss"
"""The losses of the tokens, which a chunk returns where it was given labels."""
STREAM: Dims = (("token",), ("batch",), ("chan",))
HEADS: Dims = (("token",), ("batch",), ("head",), ("chan",))
GROUPS: Dims = (("token",), ("batch",), ("group",), ("chan",))
ROUTED: Dims = (("token",), ("batch",), ("expert",))
EXPERTS: Dims = (*ROUTED, ("chan",))
MATRIX: Dims = (("batch",), ("head",), ("query",), ("key",))


@dataclass(frozen=True, slots=True)
class Place:
    """`path` leads from the layer, or from the chunk, to a module; `method` names what is called instead of it."""

    path: str
    take: str
    dims: Dims
    argument: int = 0
    keyword: str = ""
    method: str = ""
    half: int | None = None
    """Of the last dimension: a gated MLP's fc1 holds the gate's and the linear one's channels of this rank."""
    flat: bool = False
    """A method whose output has the tokens of all rows in one dimension, which are two in its input."""
    computed: bool = False
    """The model never holds these values: a fused attention's scores and probabilities are computed from its queries
    and keys, what a head adds from its context and the projection, as far as somebody asks for them; what an expert
    makes of tokens is in another order; which experts a token goes to is a choice, and so are the ids of tokens. They
    can be shown, not changed, and have no gradient."""


OF_LAYER: dict[str, Place] = {
    "resid_pre": Place("", INPUT, STREAM, keyword="hidden_states"),
    "attn.q": Place("self_attention.core_attention", INPUT, HEADS, argument=0),
    "attn.k": Place("self_attention.core_attention", INPUT, GROUPS, argument=1),
    "attn.v": Place("self_attention.core_attention", INPUT, GROUPS, argument=2),
    "attn.q_pre": Place("self_attention", OUTPUT, HEADS, argument=0, method=QKV),
    "attn.k_pre": Place("self_attention", OUTPUT, GROUPS, argument=1, method=QKV),
    "attn.scores": Place("self_attention.core_attention.scale_mask_softmax", INPUT, MATRIX),
    "attn.probs": Place("self_attention.core_attention.scale_mask_softmax", OUTPUT, MATRIX),
    "attn.context": Place("self_attention.core_attention", OUTPUT, (("token",), ("batch",), ("head", "chan"))),
    "attn.result": Place("self_attention.linear_proj", INPUT, HEADS, computed=True),
    "attn.out": Place("self_attention", BIASED, STREAM),
    "resid_mid": Place("", INPUT, STREAM, method="_forward_mlp"),
    "mlp.fc1": Place("mlp.linear_fc1", BIASED, STREAM),
    "mlp.gate": Place("mlp.linear_fc1", BIASED, STREAM, half=0),
    "mlp.up": Place("mlp.linear_fc1", BIASED, STREAM, half=1),
    "mlp.act": Place("mlp.linear_fc2", INPUT, STREAM),
    EXPERT_ACT: Place("mlp", INPUT, EXPERTS, computed=True),  # within its experts: experts.py
    EXPERT: Place("mlp.token_dispatcher", INPUT, EXPERTS, computed=True),  # in a method of its own: experts.py
    "mlp.out": Place("mlp", BIASED, STREAM),
    "router.logits": Place("mlp.router", OUTPUT, ROUTED, method="gating"),
    "router.probs": Place("mlp.router", OUTPUT, ROUTED, argument=0, method="routing", flat=True),
    "router.load": Place("mlp.router", OUTPUT, ROUTED, argument=1, method="routing", flat=True, computed=True),
    "resid_post": Place("", OUTPUT, STREAM),
}
OF_FUSED: dict[str, Place] = {
    site: Place("self_attention.core_attention", INPUT, MATRIX, computed=True) for site in ("attn.scores", "attn.probs")
}
OF_CHUNK: dict[str, Place] = {
    TOKENS: Place("embedding", INPUT, (("batch",), ("token",)), keyword="input_ids", computed=True),
    "embed": Place("embedding", OUTPUT, STREAM),
    "final_norm": Place("decoder.final_layernorm", OUTPUT, STREAM),
    LOGITS: Place("output_layer", OUTPUT, (("token",), ("batch",), ("vocab",))),
    LOSS: Place("", OUTPUT, (("batch",), ("token",))),
}

FIRST = (TOKENS, "embed")
"""What a forward pass begins with."""
OF_WEIGHTS: dict[str, Dims] = {"weight.final_norm": (("chan",),), "weight.unembed": (("vocab",), ("chan",))}
"""Of the last stage; no hook shows them."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in one chunk of this rank."""

    site: str
    layer: int | None
    """Global, from 0."""
    place: Place
    module: torch.nn.Module
    chunk: torch.nn.Module
    sae: Sae | None = None
    """What makes the site's values of those that are there."""


def weight_spots(chunks: Sequence[torch.nn.Module]) -> Iterator[tuple[Spot, torch.Tensor]]:
    """Those of the last stage, with this rank's part."""
    for chunk in chunks:
        if not chunk.post_process:
            continue
        held: Any = chunk
        shared = held.share_embeddings_and_output_weights
        values = {
            "weight.final_norm": held.decoder.final_layernorm.weight,
            "weight.unembed": held.shared_embedding_or_output_weight() if shared else held.output_layer.weight,
        }
        for site, dims in OF_WEIGHTS.items():
            yield Spot(site, None, Place("", "weight", dims), chunk, chunk), values[site]


def find(root: Any, path: str) -> Any:
    """The submodule at a dotted path; None where it is missing or does nothing."""
    for name in filter(None, path.split(".")):
        root = getattr(root, name, None)
    return None if isinstance(root, IdentityOp) else root
