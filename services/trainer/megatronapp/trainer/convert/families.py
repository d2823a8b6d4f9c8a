"""The families that are converted, and which one a model is of."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer.convert.family import Family
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.convert.gpt2 import Gpt2
from megatronapp.trainer.convert.llama import LlamaLike
from megatronapp.trainer.convert.megatron_bert import MegatronBert
from megatronapp.trainer.convert.t5 import T5
from megatronapp.trainer.model_config import ModelConfig

FAMILIES: Sequence[Family] = (
    LlamaLike("llama", "LlamaForCausalLM"),
    LlamaLike("mistral", "MistralForCausalLM", windows="all layers"),
    LlamaLike("qwen2", "Qwen2ForCausalLM", bias="qkv", windows="by layer"),
    LlamaLike("qwen3", "Qwen3ForCausalLM", qk_norm=True, windows="by layer"),
    Gpt2(),
    MegatronBert(),
    T5("t5", "T5ForConditionalGeneration", tied_by_default=True),
    T5("mt5", "MT5ForConditionalGeneration", tied_by_default=False),
)
NAMES = [family.name for family in FAMILIES]


def named(name: str) -> Family:
    """Raises UsageError."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise UsageError(f"{name!r:.80} is no model type that is converted; there are {', '.join(NAMES)}")


def of_config(config: Fields) -> Family:
    """Raises DataError for a foreign or a quantised model."""
    kind = config.text("model_type")
    if kind not in NAMES:
        raise DataError(f"{config.source}: model_type is {kind!r:.80}; converted are {', '.join(NAMES)}")
    if config.has("quantization_config"):
        raise DataError(f"{config.source}: the weights are quantised; convert the model's 16-bit or 32-bit weights")
    return named(kind)


def of_model(model: ModelConfig) -> Family:
    """The first that fits. Raises UsageError."""
    for family in FAMILIES:
        if family.matches(model):
            return family
    raise UsageError(f"no family of Hugging Face has this model's settings; written are {', '.join(NAMES)}")
