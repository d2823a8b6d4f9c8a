"""The tensors of a GPT as a checkpoint of megatron-core has them, from the model's settings alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatronapp.trainer.convert.family import LAYERS, Sizes
from megatronapp.trainer.model_config import ModelConfig


@dataclass(frozen=True)
class CoreWeight:
    """`layer`: where the key is stacked over layers. `axis`: the one that tensor-parallel ranks share, None: each has
    all. `gated`: two of that axis behind each other, and each is cut by itself."""

    key: str
    layer: int | None
    shape: tuple[int, ...]
    axis: int | None = None
    gated: bool = False


def of_gpt(model: ModelConfig, sizes: Sizes) -> Iterator[CoreWeight]:
    """All of them, layer by layer."""
    table = (sizes.rows, sizes.hidden)
    yield CoreWeight("embedding.word_embeddings.weight", None, table, 0)
    if sizes.positions:
        yield CoreWeight("embedding.position_embeddings.weight", None, (sizes.positions, sizes.hidden))
    for layer in range(sizes.layers):
        yield from _attention(model, sizes, layer)
        yield from _mlp(model, sizes, layer)
    yield from _norm("decoder.final_layernorm.", model, sizes.hidden, None)
    if model.untie_embeddings_and_output_weights:
        yield CoreWeight("output_layer.weight", None, table, 0)


def _attention(model: ModelConfig, sizes: Sizes, layer: int) -> Iterator[CoreWeight]:
    here, queries, keys = f"{LAYERS}self_attention.", sizes.heads * sizes.width, sizes.groups * sizes.width
    yield from _norm(f"{here}linear_qkv.layer_norm_", model, sizes.hidden, layer)
    yield CoreWeight(f"{here}linear_qkv.weight", layer, (queries + 2 * keys, sizes.hidden), 0)
    if model.add_qkv_bias or not model.disable_bias_linear:
        yield CoreWeight(f"{here}linear_qkv.bias", layer, (queries + 2 * keys,), 0)
    if model.qk_layernorm:
        yield from _norm(f"{here}q_layernorm.", model, sizes.width, layer)
        yield from _norm(f"{here}k_layernorm.", model, sizes.width, layer)
    yield CoreWeight(f"{here}linear_proj.weight", layer, (sizes.hidden, queries), 1)
    if not model.disable_bias_linear:
        yield CoreWeight(f"{here}linear_proj.bias", layer, (sizes.hidden,))


def _mlp(model: ModelConfig, sizes: Sizes, layer: int) -> Iterator[CoreWeight]:
    here, inner = f"{LAYERS}mlp.", sizes.ffn * (2 if model.gated else 1)
    yield from _norm(f"{here}linear_fc1.layer_norm_", model, sizes.hidden, layer)
    yield CoreWeight(f"{here}linear_fc1.weight", layer, (inner, sizes.hidden), 0, model.gated)
    if not model.disable_bias_linear:
        yield CoreWeight(f"{here}linear_fc1.bias", layer, (inner,), 0, model.gated)
    yield CoreWeight(f"{here}linear_fc2.weight", layer, (sizes.hidden, sizes.ffn), 1)
    if not model.disable_bias_linear:
        yield CoreWeight(f"{here}linear_fc2.bias", layer, (sizes.hidden,))


def _norm(key: str, model: ModelConfig, width: int, layer: int | None) -> Iterator[CoreWeight]:
    yield CoreWeight(f"{key}weight", layer, (width,))
    if model.normalization == "LayerNorm":
        yield CoreWeight(f"{key}bias", layer, (width,))
