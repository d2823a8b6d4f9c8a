"""Train steps as a user writes them, in a module that ranks import by path."""

from __future__ import annotations

from typing import Any

import torch

from megatronapp.trainer import GPTTrainStep, StepSettings


class Same(GPTTrainStep):
    """The built-in loss, written out."""

    def loss_func(self, batch: Any, output: Any) -> Any:
        losses, mask = output.float(), batch["loss_mask"].float()
        total, tokens = torch.sum(losses * mask), mask.sum()
        return total, tokens.to(torch.int), torch.stack([total.detach(), tokens])[None]


class Scaled(GPTTrainStep):
    """Means by name, as Megatron-LM's older scripts return them."""

    def __init__(self, settings: StepSettings, *, scale: float) -> None:
        super().__init__(settings)
        self.scale = scale

    def loss_func(self, batch: Any, output: Any) -> Any:
        mean = (output.float() * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        scaled = mean * self.scale
        return scaled, {"scaled loss": scaled}


class Broken(GPTTrainStep):
    """The loss of these microbatches, counted from 1, is no number."""

    def __init__(self, settings: StepSettings, *, at: list[int]) -> None:
        super().__init__(settings)
        self.at, self.seen = at, 0

    def loss_func(self, batch: Any, output: Any) -> Any:
        total, tokens, logged = super().loss_func(batch, output)
        self.seen += 1
        factor = float("nan") if self.seen in self.at else 1.0
        return total * factor, tokens, logged * factor
