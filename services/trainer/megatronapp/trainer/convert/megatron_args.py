"""What Megatron-LM keeps of a run's arguments, as flags of the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer.config_fields import flag_name
from megatronapp.trainer.convert.tokenizer_files import type_of
from megatronapp.trainer.model_config import ModelConfig

_REFUSED = {
    "num_experts": "experts",
    "multi_latent_attention": "latent attention",
    "quick_geglu": "quick GEGLU",
    "apply_layernorm_1p": "norms that add 1 to their weight",
    "apply_residual_connection_post_layernorm": "residuals behind the norm",
    "rotary_interleaved": "interleaved rotation",
    "rotary_seq_len_interpolation_factor": "interpolated rotation",
    "qk_l2_norm": "L2 norms of queries and keys",
    "no_rope_freq": "layers without rotation",
    "mtp_num_layers": "prediction of several tokens",
    "hybrid_override_pattern": "other layers than a transformer's",
    "hybrid_layer_pattern": "other layers than a transformer's",
    "heterogeneous_layers_config_path": "layers of several kinds",
    "heterogeneous_layers_config_encoded_json": "layers of several kinds",
    "attention_output_gate": "gated attention",
    "experimental_attention_variant": "another attention",
}
_NOT_OF_THE_MODEL = (
    *("model_type", "transformer_impl", "attention_backend", "disable_bias_linear", "norm_epsilon", "openai_gelu"),
    *("padded_vocab_size", "make_vocab_size_divisible_by", "bert_no_binary_head", "decoder_num_layers"),
)
"""Fields of the trainer's that are not taken by their names."""
_FILES = ("vocab_file", "merge_file", "tokenizer_model")


def model_flags(arguments: Mapping[str, Any], source: Path) -> list[str]:
    """Raises DataError that names what the trainer can't express."""
    for name, what in _REFUSED.items():
        if arguments.get(name):
            raise DataError(f"{source}: its model has {what} ({name}), which is not converted")
    if arguments.get("softmax_type", "vanilla") != "vanilla":
        raise DataError(f"{source}: softmax_type is {arguments['softmax_type']!r:.40}; the trainer has only vanilla")
    flags: list[str] = []
    for field in dataclasses.fields(ModelConfig):
        if field.name not in _NOT_OF_THE_MODEL and not field.name.startswith("moe_"):
            flags += _flag(flag_name(field), arguments.get(field.name))
    epsilon = arguments.get("norm_epsilon") or arguments.get("layernorm_epsilon") or 1e-5
    flags += ["--norm-epsilon", repr(float(epsilon))]
    flags += [] if arguments.get("add_bias_linear", True) else ["--disable-bias-linear"]
    return flags + (["--openai-gelu"] if _has_tanh_gelu(arguments) else [])


def _has_tanh_gelu(arguments: Mapping[str, Any]) -> bool:
    """Megatron-LM's fusion of bias and GELU, which is on unless turned off, is GELU's tanh form."""
    fused = arguments.get("bias_gelu_fusion", False) and arguments.get("add_bias_linear", True)
    other = arguments.get("swiglu") or arguments.get("squared_relu")
    return not other and bool(arguments.get("openai_gelu") or fused)


def _flag(name: str, value: Any) -> list[str]:
    if value is None or value is False or value in ([], ()):
        return []
    if value is True:
        return [name]
    return [name, *(str(each) for each in (value if isinstance(value, list | tuple) else [value]))]


def tokenizer_settings(arguments: Mapping[str, Any], source: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The trainer's settings, by name: those given, or those of the run. Raises UsageError."""
    kind = given.get("tokenizer_type") or ("" if given else str(arguments.get("tokenizer_type")))
    if kind == "NullTokenizer":
        size = arguments.get("vocab_size") or int(arguments.get("padded_vocab_size") or 0) - 1
        return {"tokenizer_type": kind, "vocab_size": str(size)}
    if given:
        return {"tokenizer_type": type_of(given.get("tokenizer_model", "")), **given}
    files = {name: str(arguments[name]) for name in _FILES if arguments.get(name)}
    missing = [file for file in files.values() if not Path(file).exists()]
    if kind == "None" or missing:
        what = f"was trained with {missing[0]}, which is not here" if missing else "names no tokenizer"
        raise UsageError(f"{source} {what}: give --tokenizer-type and its files")
    return {"tokenizer_type": kind, **files}
