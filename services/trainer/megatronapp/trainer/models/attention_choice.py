"""Whose attention a run takes. Arithmetic, no torch."""

from __future__ import annotations

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.model_config import ModelConfig


def has_own_attention(config: TrainerConfig) -> bool:
    """Whether layers get attention.py's, in place of megatron-core's local one or Transformer Engine's."""
    model = config.model
    if model.transformer_impl != "local":
        return False
    return model.attention_backend in ("flash", "unfused") or bool(_beyond_local(config))


def has_window(model: ModelConfig) -> bool:
    return bool(model.window_size) and model.window_size[0] >= 0


def windowed_layers(model: ModelConfig) -> list[bool]:
    """Of each layer of a model that has a window, whether it bounds what the layer's tokens see."""
    frequency = model.window_attn_skip_freq
    if len(frequency) > 1:
        return [bool(each) for each in frequency]
    return [not frequency or number % frequency[0] != 0 for number in range(1, model.num_layers + 1)]


def check_attention(config: TrainerConfig) -> None:
    """Raises UsageError."""
    _check_window(config)
    _check_documents(config)
    model, backend = config.model, config.model.attention_backend
    if model.softmax_scale == 0:
        raise UsageError("--softmax-scale 0 leaves nothing of the scores: give more, or leave it out")
    if model.position_embedding_type == "relative":
        _check_relative(config)
    elif model.model_type != "gpt" and (flag := _beyond_local(config)):
        raise UsageError(f"{flag} is not built for --model-type {model.model_type}: leave it out")
    if model.transformer_impl == "transformer_engine":
        if backend == "local":
            raise UsageError("--attention-backend local is megatron-core's own: leave --transformer-impl at local")
        if model.position_embedding_type == "alibi":
            raise UsageError("--position-embedding-type alibi needs --transformer-impl local")
        return
    if backend == "fused":
        raise UsageError(
            f"--attention-backend {backend} is a kernel of Transformer Engine: give --transformer-impl "
            "transformer_engine where it is installed, or take --attention-backend auto"
        )
    if backend == "local" and (flag := _beyond_local(config)):
        raise UsageError(f"--attention-backend local can't do {flag}: take --attention-backend auto")


def _beyond_local(config: TrainerConfig) -> str:
    """The flag that asks for what megatron-core's local attention can't do; "" without."""
    if config.model.position_embedding_type in ("alibi", "relative"):
        return f"--position-embedding-type {config.model.position_embedding_type}"
    if config.model.window_size:
        return "--window-size"
    return "--context-parallel-size" if config.parallel.context_parallel_size > 1 else ""


def _check_relative(config: TrainerConfig) -> None:
    """megatron-core's formula takes a logarithm to the distance over half of the buckets that are exact."""
    model = config.model
    if model.model_type != "t5":
        raise UsageError("--position-embedding-type relative is T5's: give --model-type t5, or another one")
    if model.window_size:
        raise UsageError("--window-size is not built for --model-type t5: leave it out")
    if config.training.recompute_granularity:
        raise UsageError(
            "--position-embedding-type relative: a bias that all layers share can't be computed again: leave "
            "--recompute-granularity out"
        )
    if model.relative_attention_num_buckets % 2 or (
        model.relative_attention_max_distance <= model.relative_attention_num_buckets // 2
    ):
        raise UsageError(
            f"--relative-attention-num-buckets {model.relative_attention_num_buckets} must be even, and "
            f"--relative-attention-max-distance {model.relative_attention_max_distance} more than half of it"
        )


def _check_documents(config: TrainerConfig) -> None:
    if not config.data.reset_attention_mask:
        return
    if config.model.transformer_impl != "local":
        raise UsageError("--reset-attention-mask needs --transformer-impl local")


def _check_window(config: TrainerConfig) -> None:
    window, frequency = config.model.window_size, config.model.window_attn_skip_freq
    if frequency and not window:
        raise UsageError("--window-attn-skip-freq says which layers --window-size leaves out: give that too")
    by_layer = 1 < len(frequency) == config.model.num_layers and set(frequency) <= {0, 1}
    if frequency and not by_layer and (len(frequency) > 1 or frequency[0] < 1):
        shown, layers = " ".join(str(each) for each in frequency), config.model.num_layers
        raise UsageError(
            f"--window-attn-skip-freq {shown}: give one number from 1, or 0 or 1 for each of {layers} layers"
        )
    if window and (len(window) != 2 or window[0] < -1 or window[1] != 0):
        shown = " ".join(str(size) for size in window)
        raise UsageError(f"--window-size {shown}: give the tokens before, and 0 for those after, such as 128 0")
