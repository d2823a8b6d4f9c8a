"""A Transformers configuration, Accelerate's settings and other_megatron_args as flags of the trainer. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer.convert import families
from megatronapp.trainer.convert.fields import Fields

SOURCE = "the model's configuration"
_POSITIONS = {"absolute": "learned_absolute", "rotary": "rope"}
_ACTIVATIONS = {"gelu": (), "gelu_new": ("--openai-gelu",), "relu2": ("--squared-relu",)}
"""Of an MLP without a gate, by the names that Transformers has."""
_RENAMED = {"splits_string": "split", "num_layers_per_stage": "num_layers_per_virtual_pipeline_stage"}


def model_flags(config: Mapping[str, Any]) -> list[str]:
    """Raises DataError for what the trainer has no model for."""
    fields = Fields(config, SOURCE)
    kind = fields.text("model_type")
    if kind == "megatron-bert":
        return _bert(fields)
    if kind in ("t5", "mt5"):
        return _t5(fields)
    family = families.of_config(fields)
    return [*family.flags(fields), "--model-type", "gpt"]


def vocabulary_flags(config: Mapping[str, Any]) -> list[str]:
    """Ids alone: the script has a tokenizer of its own. The last one ends a document."""
    size = Fields(config, SOURCE).whole("vocab_size")
    return ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(size - 1)]


def longest(config: Mapping[str, Any]) -> int:
    """The sequence length where nothing else says one."""
    fields = Fields(config, SOURCE)
    for name in ("n_positions", "max_position_embeddings"):
        if fields.has(name):
            return fields.whole(name)
    raise UsageError("the model's configuration says no longest sequence: give MegatronLMPlugin(seq_length=…)")


def _bert(fields: Fields) -> list[str]:
    activation = fields.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise DataError(f"{SOURCE}: hidden_act is {activation!r:.80}; the trainer has {', '.join(_ACTIVATIONS)}")
    return [
        *_ACTIVATIONS[activation],
        *("--model-type", "bert", "--num-layers", str(fields.whole("num_hidden_layers"))),
        *("--hidden-size", str(fields.whole("hidden_size"))),
        *("--num-attention-heads", str(fields.whole("num_attention_heads"))),
        *("--ffn-hidden-size", str(fields.whole("intermediate_size"))),
        *("--max-position-embeddings", str(fields.whole("max_position_embeddings"))),
        *("--norm-epsilon", repr(fields.number("layer_norm_eps", 1e-12))),
        *("--init-method-std", repr(fields.number("initializer_range", 0.02))),
        *("--attention-dropout", repr(fields.number("attention_probs_dropout_prob", 0.1))),
        *("--hidden-dropout", repr(fields.number("hidden_dropout_prob", 0.1))),
    ]


def _t5(fields: Fields) -> list[str]:
    """Megatron-LM's T5 of these sizes, as Accelerate makes it: its positions are learned."""
    layers, dropout = fields.whole("num_layers"), repr(fields.number("dropout_rate", 0.1))
    return [
        *("--model-type", "t5", "--num-layers", str(layers)),
        *("--decoder-num-layers", str(fields.whole("num_decoder_layers", layers))),
        *("--hidden-size", str(fields.whole("d_model")), "--ffn-hidden-size", str(fields.whole("d_ff"))),
        *("--num-attention-heads", str(fields.whole("num_heads")), "--kv-channels", str(fields.whole("d_kv"))),
        *("--max-position-embeddings", str(fields.whole("n_positions", 512))),
        *("--attention-dropout", dropout, "--hidden-dropout", dropout),
    ]


def other_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Of other_megatron_args and of an indexed dataset: names as flags. Raises UsageError."""
    flags: list[str] = []
    for name, value in arguments.items():
        if name == "attention_head_type":
            flags += _head_flags(value)
        elif name == "position_embedding_type":
            flags += ["--position-embedding-type", _POSITIONS.get(value, str(value))]
        elif value is True:
            flags.append(_flag(name))
        elif isinstance(value, list | tuple):
            flags += [_flag(name), *map(str, value)]
        elif value not in (None, False):
            flags += [_flag(name), *(str(value).split() if name.endswith("data_path") else [str(value)])]
    return flags


def _flag(name: str) -> str:
    return "--" + _RENAMED.get(name, name).replace("_", "-")


def _head_flags(kind: Any) -> list[str]:
    if kind not in ("multihead", "multiquery"):
        raise UsageError(f"attention_head_type {kind!r:.80}: take multihead or multiquery")
    return ["--group-query-attention", "--num-query-groups", "1"] if kind == "multiquery" else []
