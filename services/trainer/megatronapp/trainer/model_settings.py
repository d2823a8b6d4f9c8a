"""What of megatron-core's configuration decides what a model computes: compared before and after a plug-in's
`configure`, it tells what the plug-in made of the model, whatever its flags are."""

from __future__ import annotations

import dataclasses
from typing import Any

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig

_COMPUTED_IN = {"fp16", "bf16", "params_dtype", "enable_autocast", "autocast_dtype"}
_LAYOUT = {field.name for field in dataclasses.fields(ModelParallelConfig)} - _COMPUTED_IN
_OPERATION = {
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "config_logger_dir",
    "cp_comm_type",
    "distribute_saved_activations",
    "moe_enable_deepep",
    "moe_flex_dispatcher_backend",
    "moe_layer_recompute",
    "moe_per_layer_logging",
    "moe_token_dispatcher_type",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
}
_OPERATION_PREFIXES = ("recompute_", "cuda_graph", "enable_cuda_graph", "external_cuda_graph", "offload", "inference_")
_FIRST_WEIGHTS = ("init_method", "output_layer_init_method", "embedding_init_method", "init_model")
"""These and whatever begins so act in a run that starts anew, alone."""


def model_settings(config: TransformerConfig) -> dict[str, str]:
    """The fields that change what the model computes, with their values as texts that are the same in every process."""
    names = (field.name for field in dataclasses.fields(config))
    return {name: _text(getattr(config, name)) for name in names if _is_of_model(name)}


def _is_of_model(name: str) -> bool:
    return name not in _LAYOUT | _OPERATION and not name.startswith(_OPERATION_PREFIXES + _FIRST_WEIGHTS)


def _text(value: Any) -> str:
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text
