"""Scripts written for Accelerate's Megatron-LM plug-in run with their imports changed to this package.

    from megatronapp.trainer.accelerate import Accelerator, DistributedType, GPTTrainStep, MegatronLMDummyScheduler

Importing the package is cheap; torch and megatron-core come with what is asked for. docs/from-accelerate.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "accelerator": ("Accelerator", "AcceleratorState", "DistributedType"),
    "prepared": ("MegatronLMDummyDataLoader", "MegatronLMDummyScheduler", "ModelOutput"),
    "plugin": ("MegatronLMPlugin",),
    "train_steps": ("AbstractTrainStep", "BertTrainStep", "GPTTrainStep", "T5TrainStep"),
    "collectives": ("avg_losses_across_data_parallel_group", "gather_across_data_parallel_groups"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
