"""T5 1.1 and mT5: RMSNorm, no biases, gated MLPs, attention that is not scaled, distances in buckets that all layers of
a stack share, and a head of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert.family import ENCODER_LAYERS, LAYERS, Sizes, Weight, gated, plain, qkv
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.sizes import decoder_layers

ACTIVATIONS = {"gated-gelu": ["--geglu", "--openai-gelu"], "gated-silu": ["--swiglu"]}
POSITIONS = 512
"""Tokens that it was trained with; buckets know no bound."""


@dataclass(frozen=True)
class T5:
    name: str
    architecture: str
    tied_by_default: bool
    prefix: str = ""
    passed_over = re.compile(
        r"^(encoder|decoder)\.embed_tokens\.weight$"  # shared.weight again
        r"|^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"
    )
    tied: frozenset[str] = frozenset()

    def matches(self, model: ModelConfig) -> bool:
        return (
            model.model_type == "t5"
            and model.position_embedding_type == "relative"
            and model.normalization == "RMSNorm"
            and model.gated
            and model.activation in ("silu", "gelu_tanh")
            and model.softmax_scale == 1
            and model.untie_embeddings_and_output_weights
            and model.disable_bias_linear
            and not (model.add_qkv_bias or model.group_query_attention)
        )

    def flags(self, config: Fields) -> list[str]:
        config.expect("tie_word_embeddings", False, default=self.tied_by_default)
        kind = config.text("feed_forward_proj", "relu")
        if kind not in ACTIVATIONS:
            raise DataError(
                f"{config.source}: feed_forward_proj is {kind!r:.80}, as the first T5's; converted are T5 1.1 and mT5, "
                f"which have {' or '.join(ACTIVATIONS)}"
            )
        layers, dropout = config.whole("num_layers"), repr(config.number("dropout_rate", 0.1))
        return [
            *("--model-type", "t5", "--num-layers", str(layers)),
            *("--decoder-num-layers", str(config.whole("num_decoder_layers", layers))),
            *("--hidden-size", str(config.whole("d_model")), "--ffn-hidden-size", str(config.whole("d_ff"))),
            *("--num-attention-heads", str(config.whole("num_heads")), "--kv-channels", str(config.whole("d_kv"))),
            *("--normalization", "RMSNorm", "--norm-epsilon", repr(config.number("layer_norm_epsilon", 1e-6))),
            *("--position-embedding-type", "relative", "--softmax-scale", "1"),
            *("--relative-attention-num-buckets", str(config.whole("relative_attention_num_buckets", 32))),
            *("--relative-attention-max-distance", str(config.whole("relative_attention_max_distance", 128))),
            *("--max-position-embeddings", str(config.whole("n_positions", POSITIONS))),
            *("--attention-dropout", dropout, "--hidden-dropout", dropout),
            *("--disable-bias-linear", "--untie-embeddings-and-output-weights", *ACTIVATIONS[kind]),
        ]

    def config(self, trainer: TrainerConfig, sizes: Sizes) -> dict[str, Any]:
        model = trainer.model
        return {
            "architectures": [self.architecture],
            "model_type": self.name,
            "d_model": sizes.hidden,
            "d_ff": sizes.ffn,
            "d_kv": sizes.width,
            "num_heads": sizes.heads,
            "num_layers": sizes.layers,
            "num_decoder_layers": decoder_layers(model),
            "n_positions": model.max_position_embeddings or trainer.training.seq_length,
            "relative_attention_num_buckets": model.relative_attention_num_buckets,
            "relative_attention_max_distance": model.relative_attention_max_distance,
            "feed_forward_proj": "gated-silu" if model.swiglu else "gated-gelu",
            "layer_norm_epsilon": model.norm_epsilon,
            "dropout_rate": model.hidden_dropout,
            "vocab_size": sizes.rows,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,
        }

    def weights(self, model: ModelConfig, sizes: Sizes) -> Iterator[Weight]:
        table = (sizes.rows, sizes.hidden)
        yield plain("embedding.word_embeddings.weight", "shared.weight", table)
        for stack, depth in (("encoder", sizes.layers), ("decoder", decoder_layers(model))):
            for layer in range(depth):
                yield from _layer(stack, sizes, layer)
            yield _buckets(stack, model, sizes)
            yield plain(f"{stack}.final_layernorm.weight", f"{stack}.final_layer_norm.weight", (sizes.hidden,))
        yield Weight(
            "output_layer.weight", None, table, {"lm_head.weight": table}, also=("lm_head.output_layer.weight",)
        )


def _buckets(stack: str, model: ModelConfig, sizes: Sizes) -> Weight:
    name = "relative_attention_bias.weight"
    shape = (model.relative_attention_num_buckets, sizes.heads)
    return plain(f"{stack}_relative_pos_emb.{name}", f"{stack}.block.0.layer.0.SelfAttention.{name}", shape)


def _layer(stack: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    here = ENCODER_LAYERS if stack == "encoder" else LAYERS
    there, norm = f"{stack}.block.{layer}.layer.", (sizes.hidden,)
    yield plain(f"{here}self_attention.linear_qkv.layer_norm_weight", f"{there}0.layer_norm.weight", norm, layer)
    sources = [f"{there}0.SelfAttention.{each}.weight" for each in "qkv"]
    yield qkv(f"{here}self_attention.linear_qkv.weight", layer, sources, norm, sizes)
    yield _output(f"{here}self_attention.", f"{there}0.SelfAttention.", sizes, layer)
    if stack == "decoder":
        yield from _cross(f"{there}1.", sizes, layer)
    mlp, part = f"{here}mlp.", f"{there}{2 if stack == 'decoder' else 1}."
    yield plain(f"{mlp}linear_fc1.layer_norm_weight", f"{part}layer_norm.weight", norm, layer)
    inward = [f"{part}DenseReluDense.wi_{each}.weight" for each in (0, 1)]
    yield gated(f"{mlp}linear_fc1.weight", layer, inward, norm, sizes)
    yield plain(f"{mlp}linear_fc2.weight", f"{part}DenseReluDense.wo.weight", (sizes.hidden, sizes.ffn), layer)


def _cross(there: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    here, source, rest = f"{LAYERS}cross_attention.", f"{there}EncDecAttention.", (sizes.hidden,)
    yield plain(f"{LAYERS}pre_cross_attn_layernorm.weight", f"{there}layer_norm.weight", rest, layer)
    queries = (sizes.heads * sizes.width, *rest)
    yield plain(f"{here}linear_q.weight", f"{source}q.weight", queries, layer)
    yield qkv(f"{here}linear_kv.weight", layer, [f"{source}{each}.weight" for each in "kv"], rest, sizes)
    yield _output(here, source, sizes, layer)


def _output(here: str, there: str, sizes: Sizes, layer: int) -> Weight:
    return plain(f"{here}linear_proj.weight", f"{there}o.weight", (sizes.hidden, sizes.heads * sizes.width), layer)
