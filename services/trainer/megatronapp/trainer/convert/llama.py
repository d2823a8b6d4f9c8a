"""Llama 2 and 3, Mistral, Qwen 2 and 3: RMSNorm, rotation, SwiGLU, grouped queries. They differ in biases, in norms of
queries and keys, in windows, and in the names of a few fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from megatronapp.core.errors import DataError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import windows
from megatronapp.trainer.convert.family import LAYERS, Sizes, Weight, gated, plain, qkv
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.convert.windows import Windows
from megatronapp.trainer.model_config import ModelConfig

SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of Llama 3, as megatron-core has them; only the factor is free."""
Bias = Literal["none", "qkv", "all"]


@dataclass(frozen=True)
class LlamaLike:
    """`bias`: the linear layers that have one where config.json does not say."""

    name: str
    architecture: str
    bias: Literal["none", "qkv"] = "none"
    qk_norm: bool = False
    windows: Windows = "none"
    prefix: str = "model."
    passed_over = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
    tied = frozenset({"lm_head.weight"})

    def matches(self, model: ModelConfig) -> bool:
        alike = model.model_type == "gpt" and model.num_experts is None and not model.softmax_scale
        alike = alike and windows.fit(model, self.windows)
        alike = alike and model.position_embedding_type == "rope" and model.normalization == "RMSNorm" and model.swiglu
        bias_fits = _bias_of(model) == self.bias or (self.name == "llama" and _bias_of(model) == "all")
        return alike and bias_fits and model.qk_layernorm == self.qk_norm

    # ---- settings

    def flags(self, config: Fields) -> list[str]:
        config.expect("hidden_act", "silu", default="silu")
        config.expect("partial_rotary_factor", 1.0, default=1.0)
        hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
        groups = config.whole("num_key_value_heads", heads)
        width = config.whole("head_dim", max(hidden // heads, 1))
        flags = [
            *("--num-layers", str(config.whole("num_hidden_layers"))),
            *("--hidden-size", str(hidden), "--num-attention-heads", str(heads)),
            *("--ffn-hidden-size", str(config.whole("intermediate_size")), "--swiglu"),
            *("--normalization", "RMSNorm", "--norm-epsilon", repr(config.number("rms_norm_eps", 1e-6))),
            *("--init-method-std", repr(config.number("initializer_range", 0.02))),
            *("--attention-dropout", repr(config.number("attention_dropout", 0.0)), "--hidden-dropout", "0"),
        ]
        flags += ["--group-query-attention", "--num-query-groups", str(groups)] if groups != heads else []
        flags += ["--kv-channels", str(width)] if width * heads != hidden else []
        flags += [] if config.flag("tie_word_embeddings", default=False) else ["--untie-embeddings-and-output-weights"]
        flags += ["--qk-layernorm"] if self.qk_norm else []
        return [*flags, *self._bias_flags(config), *_position_flags(config), *windows.flags(config, self.windows)]

    def _bias_flags(self, config: Fields) -> list[str]:
        attention = self.bias == "qkv" or config.flag("attention_bias", default=False)
        mlp = config.flag("mlp_bias", default=False)
        if self.bias == "qkv":
            return ["--disable-bias-linear", "--add-qkv-bias"]
        if attention != mlp or (attention and self.name != "llama"):
            name, value = ("attention_bias", attention) if attention else ("mlp_bias", mlp)
            raise DataError(f"{config.source}: {name} is {value}; the trainer has biases in all linear layers or none")
        return [] if attention else ["--disable-bias-linear"]

    def config(self, trainer: TrainerConfig, sizes: Sizes) -> dict[str, Any]:
        model = trainer.model
        found: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": self.name,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.ffn,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.groups,
            "head_dim": sizes.width,
            "hidden_act": "silu",
            "max_position_embeddings": model.max_position_embeddings or trainer.training.seq_length,
            "vocab_size": sizes.rows,
            "rms_norm_eps": model.norm_epsilon,
            "rope_theta": float(model.rotary_base),
            "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
            "initializer_range": model.init_method_std,
            "attention_dropout": model.attention_dropout,
        }
        if self.name == "llama":
            found |= {"attention_bias": _bias_of(model) == "all", "mlp_bias": _bias_of(model) == "all"}
        found |= windows.fields(model, self.windows)
        if model.use_rope_scaling:
            found["rope_scaling"] = {"rope_type": "llama3", "factor": model.rope_scaling_factor, **SCALING}
        return found

    # ---- weights

    def weights(self, model: ModelConfig, sizes: Sizes) -> Iterator[Weight]:
        table = (sizes.rows, sizes.hidden)
        yield plain("embedding.word_embeddings.weight", "model.embed_tokens.weight", table)
        for layer in range(sizes.layers):
            yield from self._layer(model, sizes, layer)
        yield plain("decoder.final_layernorm.weight", "model.norm.weight", (sizes.hidden,))
        if model.untie_embeddings_and_output_weights:
            yield plain("output_layer.weight", "lm_head.weight", table)

    def _layer(self, model: ModelConfig, sizes: Sizes, layer: int) -> Iterator[Weight]:
        there, bias = f"model.layers.{layer}.", _bias_of(model)
        here, hidden = f"{LAYERS}self_attention.", sizes.hidden
        yield plain(f"{here}linear_qkv.layer_norm_weight", f"{there}input_layernorm.weight", (hidden,), layer)
        for kind, rest in {"weight": (hidden,), **({} if bias == "none" else {"bias": ()})}.items():
            sources = [f"{there}self_attn.{each}_proj.{kind}" for each in "qkv"]
            yield qkv(f"{here}linear_qkv.{kind}", layer, sources, rest, sizes)
        if self.qk_norm:
            for each in "qk":
                source = f"{there}self_attn.{each}_norm.weight"
                yield plain(f"{here}{each}_layernorm.weight", source, (sizes.width,), layer)
        output = f"{there}self_attn.o_proj."
        yield plain(f"{here}linear_proj.weight", f"{output}weight", (hidden, sizes.heads * sizes.width), layer)
        if bias == "all":
            yield plain(f"{here}linear_proj.bias", f"{output}bias", (hidden,), layer)
        yield from _mlp(there, sizes, layer, with_bias=bias == "all")


def _position_flags(config: Fields) -> list[str]:
    flags = ["--position-embedding-type", "rope"]
    flags += ["--max-position-embeddings", str(config.whole("max_position_embeddings", 2048))]
    rope = config.part("rope_parameters") if config.has("rope_parameters") else config.part("rope_scaling")
    base = rope if rope.has("rope_theta") else config
    if not (theta := base.number("rope_theta", 10_000.0)).is_integer() or theta < 1:
        raise DataError(f"{base.source}: rope_theta is {theta}; the trainer has only whole numbers")
    flags += ["--rotary-base", str(int(theta))]
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return flags
    if kind != "llama3":
        raise DataError(f"{rope.source}: rope_type is {kind!r:.80}; the trainer has only default and llama3")
    for name, value in SCALING.items():
        rope.expect(name, value, default=float("nan"))
    return [*flags, "--use-rope-scaling", "--rope-scaling-factor", repr(rope.number("factor"))]


def _mlp(there: str, sizes: Sizes, layer: int, *, with_bias: bool) -> Iterator[Weight]:
    here, hidden = f"{LAYERS}mlp.", sizes.hidden
    norm = f"{there}post_attention_layernorm.weight"
    yield plain(f"{here}linear_fc1.layer_norm_weight", norm, (hidden,), layer)
    down = f"{there}mlp.down_proj."
    for kind, rest in {"weight": (hidden,), **({"bias": ()} if with_bias else {})}.items():
        sources = [f"{there}mlp.{each}_proj.{kind}" for each in ("gate", "up")]
        yield gated(f"{here}linear_fc1.{kind}", layer, sources, rest, sizes)
    yield plain(f"{here}linear_fc2.weight", f"{down}weight", (hidden, sizes.ffn), layer)
    if with_bias:
        yield plain(f"{here}linear_fc2.bias", f"{down}bias", (hidden,), layer)


def _bias_of(model: ModelConfig) -> Bias:
    if not model.disable_bias_linear:
        return "all"
    return "qkv" if model.add_qkv_bias else "none"
