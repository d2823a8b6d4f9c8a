"""Sliding windows: config.json counts the tokens that one sees with itself, the trainer those before it.

Mistral has one for all layers. Qwen says which layers have it: by `layer_types`, or by `max_window_layers`, the number
of the first ones, which see everything (transformers 4.57, Qwen2Config).
"""

from __future__ import annotations

from typing import Any, Literal

from megatronapp.core.errors import DataError
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.attention_choice import has_window, windowed_layers

Windows = Literal["none", "all layers", "by layer"]
"""What a family knows of them."""
DEFAULT_WINDOW, DEFAULT_FULL_LAYERS = 4096, 28
"""Of a config.json that says nothing."""
FULL, SLIDING = "full_attention", "sliding_attention"
MOST_LAYERS = 10_000


def flags(config: Fields, windows: Windows) -> list[str]:
    """The trainer's. Raises DataError."""
    used = windows != "none" and config.flag("use_sliding_window", default=windows == "all layers")
    if not used or config.is_null("sliding_window"):
        return []
    found = ["--window-size", str(config.whole("sliding_window", DEFAULT_WINDOW) - 1), "0"]
    if windows == "all layers":
        return found
    windowed = _windowed(config)
    if not any(windowed):
        return []
    return found if all(windowed) else [*found, "--window-attn-skip-freq", *(str(int(each)) for each in windowed)]


def _windowed(config: Fields) -> list[bool]:
    """Of each layer, whether it has the window."""
    layers = config.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = config.values.get("layer_types")
    if kinds is None:
        full = config.whole("max_window_layers", DEFAULT_FULL_LAYERS, least=0)
        return [layer >= full for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise DataError(f"{config.source}: layer_types is {kinds!r:.80}, not {FULL} or {SLIDING} for each of {layers}")
    return [kind == SLIDING for kind in kinds]


def fit(model: ModelConfig, windows: Windows) -> bool:
    """Whether a family that knows so much of them can have this model's."""
    if windows == "by layer" or not has_window(model):
        return True
    return windows == "all layers" and not model.window_attn_skip_freq


def fields(model: ModelConfig, windows: Windows) -> dict[str, Any]:
    """Of config.json."""
    windowed = windowed_layers(model) if has_window(model) else []
    if windows == "none":
        return {}
    if not any(windowed):
        return {"sliding_window": None}
    found: dict[str, Any] = {"sliding_window": model.window_size[0] + 1}
    if windows == "by layer":
        kinds = [SLIDING if each else FULL for each in windowed]
        found |= {"use_sliding_window": True, "max_window_layers": windowed.index(True), "layer_types": kinds}
    return found
