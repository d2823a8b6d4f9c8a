"""GPT-2: LayerNorm, learned positions, GELU in its tanh form, biases everywhere, tied embeddings. Its linear layers are
stored with inputs as rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert.family import LAYERS, Sizes, Tensors, Weight, join_qkv, split_qkv
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.model_config import ModelConfig

TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class Gpt2:
    name: str = "gpt2"
    prefix: str = "transformer."
    passed_over = re.compile(r"\.attn\.(bias|masked_bias)$")
    tied = frozenset({"lm_head.weight"})

    def matches(self, model: ModelConfig) -> bool:
        return (
            model.model_type == "gpt"
            and model.position_embedding_type == "learned_absolute"
            and model.normalization == "LayerNorm"
            and model.activation.startswith("gelu")
            and not (model.gated or model.disable_bias_linear or model.qk_layernorm or model.group_query_attention)
            and model.kv_channels in (None, model.hidden_size // model.num_attention_heads)
            and model.num_experts is None
            and not (model.window_size or model.softmax_scale)
        )

    def flags(self, config: Fields) -> list[str]:
        activation = config.text("activation_function", "gelu_new")
        if activation not in (*TANH_GELU, "gelu"):
            raise DataError(
                f"{config.source}: activation_function is {activation!r:.80}; the trainer has only "
                f"{', '.join(TANH_GELU)} and gelu"
            )
        config.expect("scale_attn_weights", True, default=True)
        config.expect("scale_attn_by_inverse_layer_idx", False, default=False)
        config.expect("add_cross_attention", False, default=False)
        hidden = config.whole("n_embd")
        tied = config.flag("tie_word_embeddings", default=True)
        return [
            *("--num-layers", str(config.whole("n_layer")), "--hidden-size", str(hidden)),
            *("--num-attention-heads", str(config.whole("n_head"))),
            *("--ffn-hidden-size", str(config.whole("n_inner", 4 * hidden))),
            *("--position-embedding-type", "learned_absolute"),
            *("--max-position-embeddings", str(config.whole("n_positions"))),
            *("--norm-epsilon", repr(config.number("layer_norm_epsilon", 1e-5))),
            *("--init-method-std", repr(config.number("initializer_range", 0.02))),
            *("--attention-dropout", repr(config.number("attn_pdrop", 0.1))),
            *("--hidden-dropout", repr(config.number("resid_pdrop", 0.1))),
            *(["--openai-gelu"] if activation in TANH_GELU else []),
            *([] if tied else ["--untie-embeddings-and-output-weights"]),
        ]

    def config(self, trainer: TrainerConfig, sizes: Sizes) -> dict[str, Any]:
        model = trainer.model
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": self.name,
            "n_embd": sizes.hidden,
            "n_layer": sizes.layers,
            "n_head": sizes.heads,
            "n_inner": sizes.ffn,
            "n_positions": sizes.positions,
            "vocab_size": sizes.rows,
            "activation_function": "gelu_new" if model.activation == "gelu_tanh" else "gelu",
            "layer_norm_epsilon": model.norm_epsilon,
            "initializer_range": model.init_method_std,
            "attn_pdrop": model.attention_dropout,
            "resid_pdrop": model.hidden_dropout,
            "embd_pdrop": model.hidden_dropout,
            "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        }

    def weights(self, model: ModelConfig, sizes: Sizes) -> Iterator[Weight]:
        table = (sizes.rows, sizes.hidden)
        yield Weight("embedding.word_embeddings.weight", None, table, {"transformer.wte.weight": table})
        learned = (sizes.positions, sizes.hidden)
        yield Weight("embedding.position_embeddings.weight", None, learned, {"transformer.wpe.weight": learned})
        for layer in range(sizes.layers):
            yield from _layer(sizes, layer)
        yield from _norm("decoder.final_layernorm.", "transformer.ln_f.", sizes, None)
        if model.untie_embeddings_and_output_weights:
            yield Weight("output_layer.weight", None, table, {"lm_head.weight": table})


def _layer(sizes: Sizes, layer: int) -> Iterator[Weight]:
    there, attention, mlp = f"transformer.h.{layer}.", f"{LAYERS}self_attention.", f"{LAYERS}mlp."
    yield from _norm(f"{attention}linear_qkv.layer_norm_", f"{there}ln_1.", sizes, layer)
    yield from _qkv(there, sizes, layer)
    yield from _linear(f"{attention}linear_proj.", f"{there}attn.c_proj.", sizes.hidden, sizes.hidden, layer)
    yield from _norm(f"{mlp}linear_fc1.layer_norm_", f"{there}ln_2.", sizes, layer)
    yield from _linear(f"{mlp}linear_fc1.", f"{there}mlp.c_fc.", sizes.ffn, sizes.hidden, layer)
    yield from _linear(f"{mlp}linear_fc2.", f"{there}mlp.c_proj.", sizes.hidden, sizes.ffn, layer)


def _norm(key: str, source: str, sizes: Sizes, layer: int | None) -> Iterator[Weight]:
    for kind in ("weight", "bias"):
        yield Weight(f"{key}{kind}", layer, (sizes.hidden,), {f"{source}{kind}": (sizes.hidden,)})


def _linear(key: str, source: str, outputs: int, inputs: int, layer: int) -> Iterator[Weight]:
    turned = {f"{source}weight": (inputs, outputs)}
    yield Weight(f"{key}weight", layer, (outputs, inputs), turned, _turned, lambda tensor: (tensor.T,))
    yield Weight(f"{key}bias", layer, (outputs,), {f"{source}bias": (outputs,)})


def _turned(tensors: Tensors) -> torch.Tensor:
    return tensors[0].T


def _qkv(there: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    key, source, hidden = f"{LAYERS}self_attention.linear_qkv.", f"{there}attn.c_attn.", sizes.hidden
    join, split = join_qkv(sizes), split_qkv(sizes)
    yield Weight(
        key=f"{key}weight",
        layer=layer,
        shape=(3 * hidden, hidden),
        sources={f"{source}weight": (hidden, 3 * hidden)},
        join=lambda tensors: join(tensors[0].T.chunk(3)),
        split=lambda tensor: (torch.cat(list(split(tensor))).T,),
    )
    yield Weight(
        key=f"{key}bias",
        layer=layer,
        shape=(3 * hidden,),
        sources={f"{source}bias": (3 * hidden,)},
        join=lambda tensors: join(tensors[0].chunk(3)),
        split=lambda tensor: (torch.cat(list(split(tensor))),),
    )
