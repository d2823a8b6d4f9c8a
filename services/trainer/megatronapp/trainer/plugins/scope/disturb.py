"""The plans in force on this rank: which of its sites and weights they disturb, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer.plugins.scope.perturb.activations import SiteChange
from megatronapp.trainer.plugins.scope.perturb.kinds import BitField
from megatronapp.trainer.plugins.scope.perturb.plan import Perturbation, Plan
from megatronapp.trainer.plugins.scope.perturb.storage import HeldWeights
from megatronapp.trainer.plugins.scope.places import OF_CHUNK, OF_LAYER, Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Change

MAX_PLANS = 16


class Disturber:
    """Between two steps plans come and go; what they say of steps is theirs."""

    def __init__(self, held: HeldWeights, shard: Shard, dtype: torch.dtype, *, storage: bool = True) -> None:
        """`storage` False: weights come to their place only inside of a step (--overlap-param-gather)."""
        self._held = held
        self._shard = shard
        self._dtype = dtype
        self._storage = storage
        self._plans: dict[str, Plan] = {}
        self._changes: list[SiteChange] = []

    @property
    def names(self) -> str:
        return ", ".join(self._plans)

    def set(self, document: Mapping[str, Any]) -> None:
        """A plan in place of that of the same name. Raises DataError, alike on all ranks; nothing has changed then."""
        plan = Plan.parse(document)
        for each in plan.perturbations:
            self._check(each)
        plans = {**self._plans, plan.name: plan}
        if len(plans) > MAX_PLANS:
            raise DataError(f"{MAX_PLANS} plans are in force: clear one")
        self._use(plans)

    def remove(self, name: str) -> None:
        """One plan; without a name all. Raises DataError where there is none."""
        if name and name not in self._plans:
            raise DataError(f"there is no plan {name!r:.40}" + (f": {self.names}" if self._plans else ""))
        self._use({each: plan for each, plan in self._plans.items() if name and each != name})

    def changes(self, spot: Spot) -> list[Change]:
        return [change for change in self._changes if change.chooses(spot)]

    def disturbs(self, step: int, request: str | None = None) -> bool:
        """Whether anything on this rank's replica is another in this step, or in a generation's pass that ends at this
        position."""
        return any(
            step in each.steps and each.replica in (None, self._shard.data)
            for plan in self._plans.values()
            if plan.request in ("", request)
            for each in plan.perturbations
        )

    def hold(self, step: int, request: str | None = None, *, in_checkpoint: bool = False) -> None:
        self._held.hold(step, request, in_checkpoint=in_checkpoint)

    def release(self) -> None:
        self._held.release()

    def _use(self, plans: dict[str, Plan]) -> None:
        self._plans = plans
        everything = [each for plan in plans.values() for each in plan.perturbations]
        self._changes = [SiteChange(each, self._shard) for each in everything if each.place != "storage"]
        self._held.set(everything)

    def _check(self, wish: Perturbation) -> None:
        """Against the model as a whole, so that all ranks come to the same."""
        model = self._shard.model
        if wish.bits:
            BitField.of(wish.bits, self._dtype)
        if wish.place == "storage" and not self._storage:
            raise DataError("weights can't be disturbed with --overlap-param-gather: leave it away, or disturb a site")
        _check_numbers("layers", wish.layers.numbers(), model.layers)
        _check_numbers("heads", (*wish.heads.numbers(), *wish.with_heads.numbers()), model.heads)
        if wish.replica is not None and wish.replica >= self._shard.at.data[1]:
            raise DataError(f"replica {wish.replica}: there are {self._shard.at.data[1]}, counted from 0")
        if wish.place != "storage" and not SiteChange(wish, self._shard).known({**OF_LAYER, **OF_CHUNK}):
            raise DataError(f"{wish.kind} at {wish.site!r:.40}: no site of that name that it could be done at")


def _check_numbers(what: str, numbers: Sequence[int], count: int) -> None:
    if any(number >= count for number in numbers):
        raise DataError(f"{what} {max(numbers)}: the model has {count}, counted from 0")
