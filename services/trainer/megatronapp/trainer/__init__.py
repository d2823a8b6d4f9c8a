"""The trainer. Of what is asked for here, torch and megatron-core come with it; the package alone is cheap."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatronapp.trainer.engine import MegatronEngine as MegatronEngine
    from megatronapp.trainer.models.bert import BertTrainStep as BertTrainStep
    from megatronapp.trainer.models.gpt import GPTTrainStep as GPTTrainStep
    from megatronapp.trainer.models.t5 import T5TrainStep as T5TrainStep
    from megatronapp.trainer.models.train_step import StepSettings as StepSettings
    from megatronapp.trainer.models.train_step import TrainStep as TrainStep

_HOMES = {
    "MegatronEngine": "engine",
    "TrainStep": "models.train_step",
    "StepSettings": "models.train_step",
    "GPTTrainStep": "models.gpt",
    "BertTrainStep": "models.bert",
    "T5TrainStep": "models.t5",
}
__all__ = ["BertTrainStep", "GPTTrainStep", "MegatronEngine", "StepSettings", "T5TrainStep", "TrainStep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
