"""What all models of a TrainingJob share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

ObjectName = Annotated[str, Field(min_length=1, max_length=253)]


class Model(BaseModel):
    """Unknown keys are refused: on a laptop nobody else would notice a typo."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)
