"""What a family can't do: refused before the first process group exists. Arithmetic, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.sizes import decoder_length

_TOKENIZERS = {"bert": ("BertWordPiece",), "t5": ("BertWordPiece", "SentencePieceTokenizer")}
SHORTEST_SEQUENCE = 8
"""Tokens of a sample with masked words."""


def check_family(config: TrainerConfig) -> None:
    """Raises UsageError."""
    _CHECKS[config.model.model_type](config)


def _check_t5(config: TrainerConfig) -> None:
    _check_masked(config)
    model, training, tensor = config.model, config.training, config.parallel.tensor_model_parallel_size
    length, positions = decoder_length(training), model.max_position_embeddings or training.seq_length
    if config.parallel.pipeline_model_parallel_size > 1:
        raise UsageError(
            "--model-type t5 can't be cut into pipeline stages: megatron-core 0.16 would hang; take "
            "--tensor-model-parallel-size, or more data-parallel ranks"
        )
    if training.variable_seq_lengths:
        raise UsageError("--variable-seq-lengths is not built for --model-type t5: leave it out")
    if config.data.vocab_extra_ids < 1:
        raise UsageError("--model-type t5 marks what is cut out with tokens of its own: give --vocab-extra-ids 100")
    if model.group_query_attention:
        raise UsageError("--group-query-attention is not built for --model-type t5: leave it out")
    if length < SHORTEST_SEQUENCE or length > positions:
        raise UsageError(
            f"--decoder-seq-length {length} must be from {SHORTEST_SEQUENCE} to --max-position-embeddings ({positions})"
        )
    if config.parallel.sequence_parallel and length % tensor:
        raise UsageError(f"--decoder-seq-length {length} can't be split over {tensor} tensor ranks")


def _check_masked(config: TrainerConfig) -> None:
    """Of models that learn from masked words."""
    family, data = f"--model-type {config.model.model_type}", config.data
    if data.mock_data:
        raise UsageError(f"{family} masks words of a text, which --mock-data has none of: give --data-path")
    if not data.tokenizer_type.startswith(_TOKENIZERS[config.model.model_type]):
        kinds = "BertWordPieceLowerCase or BertWordPieceCase"
        kinds += ", or SentencePieceTokenizer" if config.model.model_type == "t5" else ""
        raise UsageError(f"{family} needs --tokenizer-type {kinds}")
    if config.training.seq_length < SHORTEST_SEQUENCE:
        raise UsageError(f"--seq-length {config.training.seq_length} is too small: {family} needs {SHORTEST_SEQUENCE}")
    if not 0 < data.mask_prob < 1:
        raise UsageError(f"--mask-prob {data.mask_prob} is no part of the words: give one above 0 and below 1")
    if data.short_seq_prob > 1:
        raise UsageError(f"--short-seq-prob {data.short_seq_prob} is more than all samples: give at most 1")
    if config.parallel.context_parallel_size > 1:
        raise UsageError(f"{family} can't share a sequence among ranks: leave --context-parallel-size out")
    for name in ("reset_attention_mask", "reset_position_ids", "eod_mask_loss"):
        if getattr(data, name):
            raise UsageError(f"--{name.replace('_', '-')} is not built for {family}: leave it out")
    for name, absent in _GPT_ALONE.items():
        if getattr(config.model, name) != absent:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is not built for {family}: leave it out")


_GPT_ALONE: Mapping[str, Any] = {
    name: ModelConfig.__dataclass_fields__[name].default
    for name in ("num_experts", "qk_layernorm", "rotary_base", "use_rope_scaling")
}
"""megatron-core's other models would pass over these without a word."""
_CHECKS: Mapping[str, Callable[[TrainerConfig], None]] = {"gpt": lambda _: None, "bert": _check_masked, "t5": _check_t5}
