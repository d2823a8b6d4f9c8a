"""Megatron-BERT: LayerNorm before each part, learned positions, GELU, biases everywhere, and two heads, for masked
words and for the order of two texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert.family import ENCODER_LAYERS, Sizes, Weight, affine, plain, qkv
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.model_config import ModelConfig


@dataclass(frozen=True)
class MegatronBert:
    name: str = "megatron-bert"
    prefix: str = "bert."
    passed_over = re.compile(r"\.embeddings\.position_ids$")
    tied = frozenset({"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"})

    def matches(self, model: ModelConfig) -> bool:
        return (
            model.model_type == "bert"
            and model.position_embedding_type == "learned_absolute"
            and model.normalization == "LayerNorm"
            and model.activation == "gelu"
            and not (model.gated or model.disable_bias_linear)
            and not (model.group_query_attention or model.bert_no_binary_head or model.softmax_scale)
            and model.kv_channels in (None, model.hidden_size // model.num_attention_heads)
        )

    def flags(self, config: Fields) -> list[str]:
        config.expect("hidden_act", "gelu", default="gelu")
        config.expect("position_embedding_type", "absolute", default="absolute")
        config.expect("type_vocab_size", 2, default=2)
        config.expect("is_decoder", False, default=False)
        config.expect("add_cross_attention", False, default=False)
        tied = config.flag("tie_word_embeddings", default=True)
        return [
            *("--model-type", "bert", "--num-layers", str(config.whole("num_hidden_layers", 24))),
            *("--hidden-size", str(config.whole("hidden_size", 1024))),
            *("--num-attention-heads", str(config.whole("num_attention_heads", 16))),
            *("--ffn-hidden-size", str(config.whole("intermediate_size", 4096))),
            *("--position-embedding-type", "learned_absolute"),
            *("--max-position-embeddings", str(config.whole("max_position_embeddings", 512))),
            *("--norm-epsilon", repr(config.number("layer_norm_eps", 1e-12))),
            *("--init-method-std", repr(config.number("initializer_range", 0.02))),
            *("--attention-dropout", repr(config.number("attention_probs_dropout_prob", 0.1))),
            *("--hidden-dropout", repr(config.number("hidden_dropout_prob", 0.1))),
            *([] if tied else ["--untie-embeddings-and-output-weights"]),
        ]

    def config(self, trainer: TrainerConfig, sizes: Sizes) -> dict[str, Any]:
        model = trainer.model
        return {
            "architectures": ["MegatronBertForPreTraining"],
            "model_type": self.name,
            "hidden_size": sizes.hidden,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "intermediate_size": sizes.ffn,
            "max_position_embeddings": sizes.positions,
            "type_vocab_size": 2,
            "vocab_size": sizes.rows,
            "hidden_act": "gelu",
            "layer_norm_eps": model.norm_epsilon,
            "initializer_range": model.init_method_std,
            "attention_probs_dropout_prob": model.attention_dropout,
            "hidden_dropout_prob": model.hidden_dropout,
            "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        }

    def weights(self, model: ModelConfig, sizes: Sizes) -> Iterator[Weight]:
        hidden, table = sizes.hidden, (sizes.rows, sizes.hidden)
        here, there = "embedding.", "bert.embeddings."
        yield plain(f"{here}word_embeddings.weight", f"{there}word_embeddings.weight", table)
        yield plain(
            f"{here}position_embeddings.weight", f"{there}position_embeddings.weight", (sizes.positions, hidden)
        )
        yield plain(f"{here}tokentype_embeddings.weight", f"{there}token_type_embeddings.weight", (2, hidden))
        for layer in range(sizes.layers):
            yield from _layer(sizes, layer)
        yield from affine("encoder.final_layernorm.", "bert.encoder.ln.", (hidden,))
        yield from affine("pooler.dense.", "bert.pooler.dense.", (hidden, hidden))
        yield from affine("binary_head.", "cls.seq_relationship.", (2, hidden))
        yield from affine("lm_head.dense.", "cls.predictions.transform.dense.", (hidden, hidden))
        yield from affine("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm.", (hidden,))
        yield plain("output_layer.bias", "cls.predictions.bias", (sizes.rows,))
        if model.untie_embeddings_and_output_weights:
            yield plain("output_layer.weight", "cls.predictions.decoder.weight", table)


def _layer(sizes: Sizes, layer: int) -> Iterator[Weight]:
    attention, mlp, there = f"{ENCODER_LAYERS}self_attention.", f"{ENCODER_LAYERS}mlp.", f"bert.encoder.layer.{layer}."
    hidden, ffn = sizes.hidden, sizes.ffn
    yield from affine(f"{attention}linear_qkv.layer_norm_", f"{there}attention.ln.", (hidden,), layer)
    for kind, rest in {"weight": (hidden,), "bias": ()}.items():
        sources = [f"{there}attention.self.{each}.{kind}" for each in ("query", "key", "value")]
        yield qkv(f"{attention}linear_qkv.{kind}", layer, sources, rest, sizes)
    yield from affine(f"{attention}linear_proj.", f"{there}attention.output.dense.", (hidden, hidden), layer)
    yield from affine(f"{mlp}linear_fc1.layer_norm_", f"{there}ln.", (hidden,), layer)
    yield from affine(f"{mlp}linear_fc1.", f"{there}intermediate.dense.", (ffn, hidden), layer)
    yield from affine(f"{mlp}linear_fc2.", f"{there}output.dense.", (hidden, ffn), layer)
