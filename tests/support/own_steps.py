"""Train steps as a user writes them, in a module that ranks import by path."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from megatronapp.trainer import BertTrainStep, GPTTrainStep, StepSettings, T5TrainStep


class Same(GPTTrainStep):
    """The built-in loss, written out."""

    def loss_func(self, batch: Any, output: Any) -> Any:
        return _of_words(batch, output)


class SameT5(T5TrainStep):
    """As Same."""

    def loss_func(self, batch: Any, output: Any) -> Any:
        return _of_words(batch, output)


class SameBert(BertTrainStep):
    """As Same, with the order of sentences."""

    def loss_func(self, batch: Any, output: Any) -> Any:
        words, order = output
        total, tokens, logged = _of_words(batch, words)
        wrong = F.cross_entropy(order.view(-1, 2).float(), batch["is_random"], reduction="sum")
        rows = batch["is_random"].numel()
        of_order = torch.stack([wrong.detach(), torch.full_like(wrong, rows).detach()])
        return total + wrong / rows * tokens, tokens, torch.cat([logged, of_order[None]])


def _of_words(batch: Any, output: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
