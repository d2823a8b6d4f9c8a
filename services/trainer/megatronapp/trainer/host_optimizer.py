"""An optimizer whose state waits, and whose step is taken, on the host (--optimizer-cpu-offload).

Megatron-core's HybridDeviceOptimizer needs CUDA to be built at all, and keeps state that its own checkpoints of torch's
Adam don't take. This one is torch's AdamW to everybody else, checkpoints included. A step copies weights and gradients
to the host, all at once in the order of the device's own work; as soon as one weight is there it is stepped, and its
way back is hidden behind the steps of those that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.optim.adamw import adamw

Group = Mapping[str, Any]


@dataclass
class _Copy:
    """Of a weight and its gradient, in memory that the device reaches by itself."""

    weight: torch.Tensor
    gradient: torch.Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def room_for(cls, weight: torch.Tensor) -> _Copy:
        pinned = weight.is_cuda
        one, other = (torch.empty_like(weight, device="cpu", pin_memory=pinned) for _ in range(2))
        return cls(one, other, torch.cuda.Event() if pinned else None)

    def take(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        self.weight.copy_(weight, non_blocking=True)
        self.gradient.copy_(gradient, non_blocking=True)
        if self.arrived is not None:
            self.arrived.record()

    def wait(self) -> None:
        if self.arrived is not None:
            self.arrived.synchronize()


class HostAdam(torch.optim.AdamW):
    """AdamW that holds on the host the moments of the first weights, up to that part of all their elements."""

    def __init__(self, groups: Sequence[Group], part: float = 1.0) -> None:
        super().__init__([{**group, "params": []} for group in groups])
        for own, given in zip(self.param_groups, groups, strict=True):
            own["params"] = list(given["params"])  # shards of float32 weights are no leaves, which torch would refuse
        self._copies = {weight: _Copy.room_for(weight) for weight in _first(self._weights(), part)}
        for weight in self._weights():
            self.state[weight] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(weight, device=self._place(weight)),
                "exp_avg_sq": torch.zeros_like(weight, device=self._place(weight)),
            }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Of weights that have a gradient. `closure` is torch's, and not called."""
        groups = [(group, [each for each in group["params"] if each.grad is not None]) for group in self.param_groups]
        for _, weights in groups:
            for weight in weights:
                if weight in self._copies:
                    self._copies[weight].take(weight, weight.grad)
        for group, weights in groups:
            here = [weight for weight in weights if weight not in self._copies]
            self._adam(group, here, here, [weight.grad for weight in here])
        for group, weights in groups:
            for weight in weights:
                if weight in self._copies:
                    self._step_on_the_host(group, weight)

    def _step_on_the_host(self, group: Group, weight: torch.Tensor) -> None:
        copy = self._copies[weight]
        copy.wait()
        self._adam(group, [weight], [copy.weight], [copy.gradient], fused=True)
        weight.copy_(copy.weight, non_blocking=True)

    def _adam(
        self,
        group: Group,
        weights: Sequence[torch.Tensor],
        values: list[torch.Tensor],
        gradients: list[torch.Tensor],
        fused: bool | None = None,
    ) -> None:
        states = [self.state[weight] for weight in weights]
        adamw(
            values,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=fused,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would take all moments to the device of their weights."""
        super().load_state_dict({**state_dict, "state": {}})
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        for index, weight in zip(saved, self._weights(), strict=True):
            self.state[weight] = {
                name: torch.as_tensor(value).to("cpu" if name == "step" else self._place(weight), torch.float32)
                for name, value in state_dict["state"][index].items()
            }

    def _weights(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _place(self, weight: torch.Tensor) -> torch.device:
        return torch.device("cpu") if weight in self._copies else weight.device


def _first(weights: Iterable[torch.Tensor], part: float) -> list[torch.Tensor]:
    all_of_them = list(weights)
    limit = part * sum(weight.numel() for weight in all_of_them)
    taken, held = list[torch.Tensor](), 0
    for weight in all_of_them:
        if held >= limit:
            break
        taken.append(weight)
        held += weight.numel()
    return taken
