"""Parameters and operations of what all families are made of, from shapes alone."""

from __future__ import annotations

from megatronapp.trainer.config import TrainingConfig
from megatronapp.trainer.model_config import ModelConfig


def ffn_hidden_size(model: ModelConfig) -> int:
    """Megatron-LM's default: four times the hidden size; gated, two thirds of it in steps of 64."""
    if model.ffn_hidden_size is not None:
        return model.ffn_hidden_size
    return int(model.hidden_size * 8 / 3 / 64) * 64 if model.gated else 4 * model.hidden_size


def decoder_layers(model: ModelConfig) -> int:
    """Of a model with a second stack, the decoder's."""
    return model.decoder_num_layers or model.num_layers


def decoder_length(training: TrainingConfig) -> int:
    """Tokens of a sequence there."""
    return training.decoder_seq_length or training.seq_length


def attention_parameters(model: ModelConfig) -> int:
    """Of one attention, to itself or to another stack."""
    queries, keys = attention_widths(model)
    return model.hidden_size * (queries + 2 * keys) + queries * model.hidden_size


def mlp_parameters(model: ModelConfig) -> int:
    """Of one layer's, experts and router included."""
    hidden, matrices = model.hidden_size, 3 if model.gated else 2
    if model.num_experts is None:
        return matrices * hidden * ffn_hidden_size(model)
    expert = matrices * hidden * (model.moe_ffn_hidden_size or ffn_hidden_size(model))
    return model.num_experts * (expert + hidden) + matrices * hidden * _shared(model)


def embedding_parameters(model: ModelConfig, vocabulary: int, positions: int) -> int:
    """Of words, in and out, and of learned positions."""
    words = vocabulary * model.hidden_size * (2 if model.untie_embeddings_and_output_weights else 1)
    return words + (positions * model.hidden_size if model.position_embedding_type == "learned_absolute" else 0)


def projection_flops(model: ModelConfig, queries: int, keys: int) -> int:
    """Of one forward pass of an attention's projections. `queries`, `keys`: positions."""
    width, key_width = attention_widths(model)
    return 2 * model.hidden_size * (2 * width * queries + 2 * key_width * keys)


def score_flops(model: ModelConfig, pairs: float) -> float:
    """Of one forward pass of an attention between so many pairs of positions."""
    return 4 * pairs * attention_widths(model)[0]


def mlp_flops(model: ModelConfig, tokens: int) -> int:
    """Of one forward pass of one layer's MLP, or of its experts that a token takes, shared ones included."""
    inner = ffn_hidden_size(model)
    if model.num_experts is not None:
        inner = (model.moe_ffn_hidden_size or inner) * model.moe_router_topk + _shared(model)
    return 2 * tokens * model.hidden_size * inner * (3 if model.gated else 2)


def _shared(model: ModelConfig) -> int:
    """Inner width of the experts that every token passes."""
    return model.moe_shared_expert_intermediate_size or 0


def attention_widths(model: ModelConfig) -> tuple[int, int]:
    """Of all queries of a position together, and of all its keys."""
    width = model.kv_channels or model.hidden_size // model.num_attention_heads
    groups = model.num_query_groups if model.group_query_attention else model.num_attention_heads
    return width * model.num_attention_heads, width * groups
