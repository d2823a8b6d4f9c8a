"""Ranks of a test that show and disturb their own model through the taps, without a plug-in, agent or gateway."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from megatronapp.core.trace.values import Progress, Schedule
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.scope.perturb.activations import SiteChange
from megatronapp.trainer.plugins.scope.perturb.kept import Kept
from megatronapp.trainer.plugins.scope.perturb.philox import Key, uniform, words_at
from megatronapp.trainer.plugins.scope.perturb.plan import Plan
from megatronapp.trainer.plugins.scope.perturb.storage import HeldWeights
from megatronapp.trainer.plugins.scope.position import Position
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Capture, Demand, Taps
from megatronapp.trainer.plugins.scope.weights import weights
from tests.support.training import train

Floats = npt.NDArray[np.float32]
Where = tuple[str, int | None, bool]
"""Site, layer, whether it is the gradient."""


@dataclass
class Part:
    """One rank's part of a site's tensor in one microbatch."""

    value: Floats
    index: tuple[npt.NDArray[np.int64], ...]
    """Global numbers of each logical axis, in the order of `axes`."""
    axes: tuple[str, ...]


@dataclass
class Look:
    """What a rank has to tell."""

    losses: list[float] = field(default_factory=list)
    parts: dict[Where, list[Part]] = field(default_factory=dict)
    hooks_before: int = 0
    hooks_while: int = 0
    """In the first step."""
    hooks_after: int = 0
    weights: dict[str, Floats] = field(default_factory=dict)
    """Before the first step."""
    trained: dict[str, Floats] = field(default_factory=dict)
    """After the last one."""
    tokens: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Of each microbatch, [batch, token]."""


@dataclass(frozen=True)
class Wanted:
    sites: tuple[str, ...] = ()
    """Looked at in the first step. ("*",): all."""
    gradients: bool = False
    plan: dict[str, Any] | None = None
    """Disturbed in all steps."""


class Looker(Plugin):
    """Fills biases and norms with values that a bias left out, or one added twice, would show."""

    name = "looker"
    wanted: ClassVar[Wanted] = Wanted()
    found: ClassVar[Look] = Look()

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        made = cls()
        made.sizes = context.schedule
        return made

    sizes: Schedule

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for weight in weights(chunks):
            if weight.parameter.dim() == 1:
                places = weight.places()
                words = words_at(places, torch.zeros_like(places), 0, Key.of(7, weight.name))
                weight.parameter.data.add_((0.2 * uniform(words[0])).float())
        self.chunks, self.position = chunks, Position()
        config: Any = chunks[0].config
        self.shard = Shard.of(
            chunks,
            config,
            vocabulary=int(chunks[0].vocab_size),  # type: ignore[arg-type]
            micro_batch_size=self.sizes.micro_batch_size,
            sequence_length=self.sizes.sequence_length,
        )
        self.taps = Taps(chunks, self.shard, self.position)
        self.held = HeldWeights(list(weights(chunks)), self.shard.data)
        self.found.hooks_before = hooks(chunks)
        self.found.weights = _copied(chunks)

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for batch in iterator:
            self.found.tokens.append(batch["tokens"].cpu().numpy().copy())
            yield batch

    def step_begin(self, step: int) -> None:
        wanted = self.wanted
        if step == 1 and (wanted.sites or wanted.plan):
            plan = Plan.parse(wanted.plan) if wanted.plan else None
            changes = [SiteChange(each, self.shard, Kept(self.shard)) for each in plan.perturbations] if plan else []
            self.held.set(plan.perturbations if plan else ())
            demands = []
            for spot in self.taps.spots:
                demand = Demand([change for change in changes if change.chooses(spot)])
                if spot.site in wanted.sites or wanted.sites == ("*",):
                    demand.readers.append(self._see)
                    demand.gradient_readers += [self._see] if wanted.gradients else []
                demands.append((spot, demand))
            self.taps.set(demands)
        elif step == 2 and not wanted.plan:
            self.taps.clear()
        self.found.hooks_while = max(self.found.hooks_while, hooks(self.chunks))
        self.position.step, self.position.active = step, True
        self.held.hold(step)

    def optimizer(self, step: Any) -> Any:
        def released() -> Any:
            self.held.release()
            return step()

        return released

    def step_end(self, step: int, progress: Progress | None) -> None:
        self.position.active = False

    def close(self) -> None:
        self.taps.clear()
        self.found.hooks_after = hooks(self.chunks)
        self.found.trained = _copied(self.chunks)

    def _see(self, capture: Capture) -> None:
        if capture.step > 1 or capture.key is not None:
            return
        spot, value = capture.spot, capture.value
        dims, at = spot.place.dims, replace(self.position, microbatch=capture.microbatch)
        index = self.shard.index(spot.site, spot.place, value, at)
        axes = tuple(axis for dim in dims for axis in dim)
        shape = [count for dim, size in zip(dims, value.shape, strict=True) for count in self.shard.counts(dim, size)]
        numbers = tuple(np.unique(index[axis].cpu().numpy()) for axis in axes)
        part = Part(value.reshape(shape).float().cpu().numpy().copy(), numbers, axes)
        self.found.parts.setdefault((spot.site, spot.layer, capture.gradient), []).append(part)


def _copied(chunks: Sequence[torch.nn.Module]) -> dict[str, Floats]:
    return {each.name: each.parameter.detach().float().cpu().numpy().copy() for each in weights(chunks)}


def hooks(chunks: Sequence[torch.nn.Module]) -> int:
    """Everything that stands in the modules and was not there when they were built."""
    modules = [module for chunk in chunks for module in chunk.modules()]
    return sum(
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._backward_hooks)
        + sum(
            callable(value) and not isinstance(value, type) and name in ("_forward_mlp", "gating", "routing", "forward")
            for name, value in vars(module).items()
        )
        for module in modules
    )


def run_captured(flags: str, wanted: Wanted) -> Look:
    """A rank's run."""
    Looker.wanted, Looker.found = wanted, Look()
    Looker.found.losses = train(flags, plugins=(Looker,)).losses
    return Looker.found


def whole(looks: Sequence[Look], where: Where) -> Floats:
    """The undivided tensor, of all microbatches of the first step, from all ranks' parts; those that several ranks have
    must be alike."""
    parts = [part for run_captured in looks for part in run_captured.parts.get(where, [])]
    assert parts, f"nobody has {where}"
    sizes = [1 + max(int(part.index[axis].max()) for part in parts) for axis in range(len(parts[0].index))]
    result = np.full(sizes, np.nan, np.float32)
    for part in parts:
        at = np.ix_(*part.index)
        known = result[at]
        assert np.allclose(part.value, known, rtol=1e-4, atol=1e-5) or np.isnan(known).any(), where
        result[at] = part.value
    return result
