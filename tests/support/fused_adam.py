"""Transformer Engine's Adam on CPUs: it keeps and takes its state as that does, and computes what torch's does.

From its transformer_engine/pytorch/optimizers/fused_adam.py: a step is a whole number that each group has, a state
holds moments alone, and groups need `bias_correction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import megatron.core.optimizer as megatron_optimizers
import torch
from megatron.core.optimizer import distrib_optimizer
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")


class FusedAdam(torch.optim.Optimizer):
    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
        adam_w_mode: bool,
    ) -> None:  # fmt: skip
        assert adam_w_mode
        super().__init__(
            params, {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            assert type(group["step"]) is int
            assert group["bias_correction"]
            weights = [each for each in group["params"] if each.grad is not None]
            states = [self.state[each] for each in weights]
            for state, weight in zip(states, weights, strict=True):
                for name in MOMENTS:
                    state.setdefault(name, torch.zeros_like(weight))
                assert state.keys() == set(MOMENTS)
            adamw(
                weights,
                [each.grad for each in weights],
                *([state[name] for state in states] for name in MOMENTS),
                [],
                [torch.tensor(float(group["step"] - 1)) for _ in weights],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if unknown := {name for state in state_dict["state"].values() for name in state} - set(MOMENTS):
            raise KeyError(unknown.pop())


def take_transformer_engines_adam() -> None:
    """In this process, as where Transformer Engine is installed."""
    megatron_optimizers.USING_PYTORCH_OPTIMIZER, megatron_optimizers.Adam = False, FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_TE_OPTIMIZER = True
    distrib_optimizer.Adam = FusedAdam
