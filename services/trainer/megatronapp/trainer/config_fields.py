"""What a setting is made of: a field with its help text, its least value, and what it changes."""

from __future__ import annotations

import dataclasses
from typing import Any

from megatronapp.core.str_enum import StrEnum


class Effect(StrEnum):
    """What a flag changes, and so what a run that goes on from a checkpoint may do with it (recipe.py)."""

    FORWARD = "forward"
    """What the model computes of a text, in training too, where dropout acts: must be as saved."""
    TRAINING = "training"
    """What is learned, and how fast: may change, and the change is logged."""
    OPERATION = "operation"
    """Where and how it runs: paths, intervals, the layout of ranks."""


FORWARD, TRAINING, OPERATION = Effect
HELP, EFFECT, MINIMUM = "help", "effect", "minimum"


def flag(default: Any, text: str, effect: Effect, *, minimum: int | None = None) -> Any:
    """A field with its default value and its help text. Whole numbers start at 1, others at 0, or at `minimum`."""
    return dataclasses.field(default=default, metadata={HELP: text, EFFECT: effect, MINIMUM: minimum})


def required(text: str, effect: Effect) -> Any:
    """A field that the user must give."""
    return dataclasses.field(metadata={HELP: text, EFFECT: effect, MINIMUM: None})


def flag_name(field: dataclasses.Field[Any]) -> str:
    return "--" + field.name.replace("_", "-")
