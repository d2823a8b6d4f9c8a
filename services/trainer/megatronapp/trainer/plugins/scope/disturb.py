"""The plans in force on this rank: which of its sites and weights they disturb, and when."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.intervention import FROM_VALUES, PATCH
from megatronapp.trainer.plugins.scope.perturb.activations import SiteChange
from megatronapp.trainer.plugins.scope.perturb.kept import Kept
from megatronapp.trainer.plugins.scope.perturb.kinds import BitField
from megatronapp.trainer.plugins.scope.perturb.plan import Perturbation, Plan
from megatronapp.trainer.plugins.scope.perturb.storage import HeldWeights
from megatronapp.trainer.plugins.scope.places import OF_CHUNK, OF_LAYER, Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Change

MAX_PLANS = 16
ALL_PLACES = {**OF_LAYER, **OF_CHUNK}


class Disturber:
    """Between two steps plans come and go; what they say of steps is theirs."""

    def __init__(
        self, held: HeldWeights, shard: Shard, dtype: torch.dtype, kept: Kept, *, storage: bool = True
    ) -> None:
        """`storage` False: weights come to their place only inside of a step (--overlap-param-gather)."""
        self._held = held
        self._shard = shard
        self._dtype = dtype
        self._storage = storage
        self._kept = kept
        self._plans: dict[str, Plan] = {}
        self._of_requests: dict[str, Plan] = {}
        """That generations carry, by the generation's id."""
        self._changes: list[SiteChange] = []

    @property
    def names(self) -> str:
        return ", ".join(self._plans)

    def put(self, document: Mapping[str, Any]) -> None:
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

    def begin(self, request: GenerationRequest, rows: int) -> None:
        """The interventions that a generation carries, until `end`. Raises DataError, alike on all ranks."""
        if not request.interventions:
            return
        plan = Plan.of_request(request)
        for each in plan.perturbations:
            self._check(each, rows)
        self._of_requests[request.id] = plan
        self._use(self._plans)

    @property
    def sources(self) -> frozenset[str]:
        """Generations whose kept values those under way take."""
        plans = (*self._plans.values(), *self._of_requests.values())
        perturbations = [each for plan in plans for each in plan.perturbations]
        return frozenset(source for each in perturbations for source in (each.source, each.baseline))

    def end(self, request: str) -> bool:
        """Returns whether it carried any."""
        if self._of_requests.pop(request, None) is None:
            return False
        self._use(self._plans)
        return True

    def changes(self, spot: Spot) -> list[Change]:
        return [change for change in self._changes if change.chooses(spot)]

    def disturbs(self, step: int, request: str | None = None) -> bool:
        """Whether anything on this rank's replica is another in this step, or in a generation's pass that ends at this
        position."""
        return any(
            step in each.steps and each.replica in (None, self._shard.data)
            for plan in (*self._plans.values(), *self._of_requests.values())
            if plan.request in ("", request)
            for each in plan.perturbations
        )

    def hold(self, step: int, request: str | None = None, *, in_checkpoint: bool = False) -> None:
        self._held.hold(step, request, in_checkpoint=in_checkpoint)

    def release(self) -> None:
        self._held.release()

    def _use(self, plans: dict[str, Plan]) -> None:
        self._plans = plans
        in_force = (*plans.values(), *self._of_requests.values())
        everything = [each for plan in in_force for each in plan.perturbations]
        self._changes = [SiteChange(each, self._shard, self._kept) for each in everything if each.place != "storage"]
        self._held.set(everything)

    def _check(self, wish: Perturbation, rows: int | None = None) -> None:
        """Against the model as a whole, so that all ranks come to the same. `rows`: of the generation that has it."""
        model = self._shard.model
        if wish.bits:
            BitField.of(wish.bits, self._dtype)
        if wish.place == "storage" and not self._storage:
            raise DataError("weights can't be disturbed with --overlap-param-gather: leave it away, or disturb a site")
        _check_numbers("layers", wish.layers.numbers(), model.layers)
        _check_numbers("heads", (*wish.heads.numbers(), *wish.with_heads.numbers()), model.heads)
        if wish.replica is not None and wish.replica >= self._shard.at.data[1]:
            raise DataError(f"replica {wish.replica}: there are {self._shard.at.data[1]}, counted from 0")
        if wish.place == "storage":
            return
        sites = SiteChange(wish, self._shard, self._kept).known(ALL_PLACES)
        if not sites:
            raise DataError(f"{wish.kind} at {wish.site!r:.40}: no site of that name that it could be done at")
        if wish.kind in FROM_VALUES:
            self._check_values(wish, sites, rows)

    def _check_values(self, wish: Perturbation, sites: Sequence[str], rows: int | None) -> None:
        """Those that it takes from elsewhere are there, and fit."""
        for site in sites:
            axes = {axis.name: axis.size for axis in self._kept.axes(site)}
            if wish.kind != PATCH and "query" in axes:
                raise DataError(f"{wish.kind} at {site}: take a site that has channels")
            if wish.vector and len(wish.vector) != axes.get("chan"):
                raise DataError(
                    f"a vector of {len(wish.vector)} values at {site}, which has {axes.get('chan')} channels"
                )
            layers = [each for each in range(self._shard.model.layers) if each in wish.layers]
            for source, layer in itertools.product(
                filter(None, (wish.source, wish.baseline)), layers if site in OF_LAYER else (None,)
            ):
                self._kept.require(source, site, layer, rows if wish.kind == PATCH else None)


def _check_numbers(what: str, numbers: Sequence[int], count: int) -> None:
    if any(number >= count for number in numbers):
        raise DataError(f"{what} {max(numbers)}: the model has {count}, counted from 0")
