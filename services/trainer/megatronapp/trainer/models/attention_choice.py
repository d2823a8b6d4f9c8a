"""Whose attention a run takes. Arithmetic, no torch."""

from __future__ import annotations

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig


def has_own_attention(config: TrainerConfig) -> bool:
    """Whether layers get attention.py's, in place of megatron-core's local one or Transformer Engine's."""
    model = config.model
    if model.transformer_impl != "local" or model.model_type != "gpt":
        return False
    return model.attention_backend in ("flash", "unfused") or bool(_beyond_local(config))


def check_attention(config: TrainerConfig) -> None:
    """Raises UsageError."""
    _check_window(config)
    _check_documents(config)
    model, backend = config.model, config.model.attention_backend
    if model.model_type != "gpt" and (flag := _beyond_local(config)):
        raise UsageError(f"{flag} is not built for --model-type {model.model_type}: leave it out")
    if model.transformer_impl == "transformer_engine":
        if backend == "local":
            raise UsageError("--attention-backend local is megatron-core's own: leave --transformer-impl at local")
        if model.position_embedding_type == "alibi":
            raise UsageError("--position-embedding-type alibi needs --transformer-impl local")
        return
    if backend == "fused" or (backend == "flash" and model.model_type != "gpt"):
        raise UsageError(
            f"--attention-backend {backend} is a kernel of Transformer Engine: give --transformer-impl "
            "transformer_engine where it is installed, or take --attention-backend auto"
        )
    if backend == "local" and (flag := _beyond_local(config)):
        raise UsageError(f"--attention-backend local can't do {flag}: take --attention-backend auto")


def _beyond_local(config: TrainerConfig) -> str:
    """The flag that asks for what megatron-core's local attention can't do; "" without."""
    if config.model.position_embedding_type == "alibi":
        return "--position-embedding-type alibi"
    if config.model.window_size:
        return "--window-size"
    return "--context-parallel-size" if config.parallel.context_parallel_size > 1 else ""


def _check_documents(config: TrainerConfig) -> None:
    if not config.data.reset_attention_mask:
        return
    if config.model.transformer_impl != "local":
        raise UsageError("--reset-attention-mask needs --transformer-impl local")


def _check_window(config: TrainerConfig) -> None:
    window, frequency = config.model.window_size, config.model.window_attn_skip_freq
    if frequency is not None and not window:
        raise UsageError("--window-attn-skip-freq says which layers --window-size leaves out: give that too")
    if window and (len(window) != 2 or window[0] < -1 or window[1] != 0):
        shown = " ".join(str(size) for size in window)
        raise UsageError(f"--window-size {shown}: give the tokens before, and 0 for those after, such as 128 0")
