"""Where the model is: in which step and microbatch, in a first pass or in one that recomputes it; or in which pass of a
generation.

A site's hook fires outside of its chunk's forward only where activations are recomputed. megatron-core's
`current_microbatch` is that of the last forward then, which may be another one: the microbatch of a backward pass is
noted when the gradient of the chunk's output arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Position:
    step: int = 0
    microbatch: int = 0
    recomputing: bool = False
    """What is computed now was computed before: it is disturbed alike, and looked at no second time."""
    request: str | None = None
    """Of the generation that this forward pass is of, whose step is the position of its last row; None: a training."""
    first_token: int = 0
    """Of this forward pass: with a cache of keys and values it goes on behind what was computed."""
    end: int = 0
    """Of a generation: the position behind its last row."""
    active: bool = False
    """In a step that is watched or disturbed. Outside of it (in an evaluation, at a border) hooks do nothing."""
    _forward: bool = False
    _backward: int = 0

    def generate(self, request: str, start: int, end: int) -> None:
        """A pass over these positions begins; `train` ends it."""
        self.step, self.microbatch = end - 1, 0
        self.request, self.first_token, self.end = request, start, end

    def train(self) -> None:
        self.request, self.first_token, self.end, self.active = None, 0, 0, False

    def enter(self) -> bool:
        """A site's hook: whether it shall do anything."""
        self.recomputing = not self._forward
        if self.recomputing:
            self.microbatch = self._backward
        return self.active

    def begins(self, chunk: Any, _: Any) -> None:
        """A chunk's first hook: its forward begins."""
        self._forward, self.recomputing = True, False
        if self.request is not None:
            return
        layers = chunk.decoder.layers
        self.microbatch = getattr(layers[0], "current_microbatch", None) or 0 if len(layers) else 0

    def ends(self, _: Any, __: Any, output: Any) -> None:
        """Its last hook."""
        self._forward = False
        microbatch = self.microbatch

        def backward_begins(_: torch.Tensor) -> None:
            self._backward = microbatch

        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(backward_begins)
