"""What a stage computes: F, B or W of a microbatch on one of its chunks."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """FORWARD; BACKWARD, all of it or, where it is split, the gradient of the input (dgrad) alone; WGRAD, the gradient
    of the weights, which nobody waits for."""

    FORWARD = 0
    BACKWARD = 1
    WGRAD = 2

    @property
    def letter(self) -> str:
        return "FBW"[self]


class Operation(NamedTuple):
    """On a stage that is known from the context. `chunk` counts the stage's parts of the model in their order."""

    kind: Kind
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind.letter}{self.microbatch} of chunk {self.chunk}"
