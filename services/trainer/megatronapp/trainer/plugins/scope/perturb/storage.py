"""Storage: weights are other ones than those that were stored.

The model computes with the disturbed weights, the optimizer goes on with the true ones. So the disturbance is the same
in bfloat16, where a step would wipe it out (the optimizer writes weights anew from its float32 copy), and in float32,
where a step would train it along; it holds until it is cleared, what it disturbs learns meanwhile, and the true weights
come back bit for bit: they were kept.

    step begins → hold → forward and backward → release → optimizer
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch

from megatronapp.trainer.plugins.scope.perturb import kinds
from megatronapp.trainer.plugins.scope.perturb.philox import Key, Words, words_at
from megatronapp.trainer.plugins.scope.perturb.plan import Perturbation
from megatronapp.trainer.plugins.scope.weights import Weight


class HeldWeights:
    """Of one rank. While they are held the true ones are kept beside them."""

    def __init__(self, weights: Sequence[Weight], replica: int) -> None:
        self._weights = tuple(weights)
        self._replica = replica
        self._perturbations: tuple[Perturbation, ...] = ()
        self._true: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._held = False

    def set(self, perturbations: Sequence[Perturbation]) -> None:
        """Those of storage from now on. While none are held."""
        self.release()
        self._perturbations = tuple(each for each in perturbations if each.place == "storage")
        chosen = {weight.parameter for wish in self._perturbations for weight in self.chosen(wish)}
        self._true = {parameter: torch.empty_like(parameter.data) for parameter in chosen}

    def chosen(self, wish: Perturbation) -> list[Weight]:
        """Which of this rank's weights it disturbs."""
        return [
            weight
            for weight in self._weights
            if fnmatchcase(weight.name, wish.site) and (weight.layer is None or weight.layer in wish.layers)
        ]

    @torch.no_grad()
    def hold(self, step: int, request: str | None = None, *, in_checkpoint: bool = False) -> bool:
        """Disturb the weights, in a training or for a pass of a generation. In a checkpoint only what was asked for.
        Returns whether anything was disturbed."""
        wishes = [
            wish
            for wish in self._perturbations
            if step in wish.steps
            and wish.replica in (None, self._replica)
            and wish.request in ("", request)
            and (wish.keep_in_checkpoints or not in_checkpoint)
        ]
        if self._held or not wishes:
            return False
        self._held = True
        for parameter, true in self._true.items():
            true.copy_(parameter.data)
        for wish in wishes:
            for weight in self.chosen(wish):
                weight.parameter.data.copy_(_disturbed(weight, wish, step))
        return True

    @torch.no_grad()
    def release(self) -> None:
        """The true weights are back, bit for bit."""
        if self._held:
            self._held = False
            for parameter, true in self._true.items():
                parameter.data.copy_(true)


def _disturbed(weight: Weight, wish: Perturbation, step: int) -> torch.Tensor:
    values = weight.parameter.detach()
    key = Key.of(wish.seed, weight.name, wish.number)

    def words() -> Words:
        places = weight.places()
        return words_at(places, torch.zeros_like(places), step if wish.redraw else 0, key)

    changed = kinds.apply(wish.kind, values, wish.coefficient, wish.bits, words)
    mask = wish.channels.mask(weight.rows())
    if mask is None:
        return changed
    return torch.where(mask.view(-1, *[1] * (values.dim() - 1)), changed, values)
