"""The kinds of models that can be trained: protocol.py says what the trainer asks of one, each has a file of its own.

Importing this package is cheap; a family's module brings megatron-core's model with it when it is asked for.
"""

from __future__ import annotations

from importlib import import_module

from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.protocol import ModelFamily

__all__ = ["ModelFamily", "family_of"]


def family_of(model: ModelConfig) -> ModelFamily:
    """The family that --model-type names."""
    family: ModelFamily = import_module(f"megatronapp.trainer.models.{model.model_type}").FAMILY
    return family
