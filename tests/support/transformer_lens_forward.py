"""TransformerLens' own forward pass, for comparison: run by a Python that has it, whose packages can't lie beside ours.

    python transformer_lens_forward.py MODEL.npz CACHE.npz

MODEL.npz holds the trainer's weights by their global names, `tokens` [batch, pos] and `config`, arguments of
HookedTransformerConfig as JSON; CACHE.npz gets what each hook point saw, and `logits`.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig  # type: ignore[import-not-found]


def main(given: str, wanted: str) -> None:
    arrays = dict(np.load(given))
    tokens, config = torch.from_numpy(arrays.pop("tokens")), json.loads(str(arrays.pop("config")))
    model = HookedTransformer(HookedTransformerConfig(**config))
    state = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in named(arrays, config).items()}
    found = model.load_state_dict(state, strict=False)
    assert not found.unexpected_keys, found.unexpected_keys
    # What is left: biases, which such a model has none of, and buffers.
    left = [name for name in found.missing_keys if not name.rsplit(".", 1)[-1].lstrip("_").startswith(("b_", "mask"))]
    assert not [name for name in left if "rotary" not in name and "IGNORE" not in name], left
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    np.savez(wanted, logits=logits.numpy(), **{name: value.numpy() for name, value in cache.items()})


def named(weights: dict[str, np.ndarray], config: dict[str, int]) -> dict[str, np.ndarray]:
    """By TransformerLens' names, in its shapes."""
    embedding = weights["embedding.word_embeddings.weight"]
    found = {
        "embed.W_E": embedding,
        "unembed.W_U": embedding.T,
        "ln_final.w": weights["final_layernorm.weight"],
    }
    for layer in range(config["n_layers"]):
        found |= of_layer(
            {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}, config, layer
        )
    return found


def of_layer(weights: dict[str, np.ndarray], config: dict[str, int], layer: int) -> dict[str, np.ndarray]:
    groups, width, hidden = config["n_key_value_heads"], config["d_head"], config["d_model"]
    qkv = weights["self_attention.linear_qkv.weight"].reshape(groups, -1, width, hidden)
    queries, keys, values = qkv[:, :-2].reshape(-1, width, hidden), qkv[:, -2], qkv[:, -1]
    projection = weights["self_attention.linear_proj.weight"].reshape(hidden, -1, width)
    gate, up = np.split(weights["mlp.linear_fc1.weight"], 2)
    block = f"blocks.{layer}."
    return {
        f"{block}ln1.w": weights["input_layernorm.weight"],
        f"{block}attn.W_Q": queries.transpose(0, 2, 1),
        f"{block}attn._W_K": keys.transpose(0, 2, 1),
        f"{block}attn._W_V": values.transpose(0, 2, 1),
        f"{block}attn.W_O": projection.transpose(1, 2, 0),
        f"{block}ln2.w": weights["pre_mlp_layernorm.weight"],
        f"{block}mlp.W_gate": gate.T,
        f"{block}mlp.W_in": up.T,
        f"{block}mlp.W_out": weights["mlp.linear_fc2.weight"].T,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
