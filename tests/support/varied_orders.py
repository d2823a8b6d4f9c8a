"""Training runs whose gradients are kept, under megatron-core's schedule and under MegaDPP in many orders."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.dpp.trial import DYNAMIC, PLANNED, STOCK, Trial
from tests.support.random_pipelines import random_order
from tests.support.training import TINY, train

STEPS = 8
"""Of a run in which each has another order."""
HINTS = ("interleaved", "depth-first", "breadth-first")
SMALLEST_CAP_FROM = len(HINTS) + 1
TRIAL_KINDS = (DYNAMIC, PLANNED, STOCK)
TRIAL_STEPS = 2 * len(TRIAL_KINDS)


@dataclass
class Trained:
    """What one rank saw."""

    losses: list[float] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    """Of each step, before the optimizer changes them: a digest of all."""
    weights: str = ""
    """A digest of all, after the last step."""
    orders: list[list[Operation]] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)


class Watching(Plugin):
    """Keeps the gradients' and weights' digests. Outermost."""

    name = "watching"
    trained: Trained

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.trained = Trained()
        return cls()

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]

    def schedule(self, function: Any) -> Any:
        def run(**kwargs: Any) -> Any:
            outputs = function(**kwargs)
            if not kwargs["forward_only"]:
                parameters: list[Any] = [parameter for chunk in kwargs["model"] for parameter in chunk.parameters()]
                self.trained.gradients.append(digest(parameter.main_grad for parameter in parameters))
            return outputs

        return run

    def training_end(self) -> None:
        self.trained.weights = digest(self._parameters)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of what they hold, as float32."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().float().cpu().numpy().tobytes())
    return whole.hexdigest()


class StockUnderDpp(DppPlugin):
    """All that the plug-in does, but for the schedule, which is stock's: with dropout under the same keys."""

    def schedule(self, function: Any) -> Any:
        return function


class Counting(DppPlugin):
    """Keeps what each step ran in an order of its own; nothing where it was stock's. Its trial is short."""

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._trial = Trial(self._trial.kinds, warm_up_steps=1, steps=1)

    def schedule(self, function: Any) -> Any:
        scheduled = super().schedule(function)

        def run(**kwargs: Any) -> Any:
            self.dynamic.ran = []
            outputs = scheduled(**kwargs)
            Watching.trained.orders.append(self.dynamic.ran)
            return outputs

        return run


class Varied(DppPlugin):
    """Another order in each step: hints, what the step before ran, and random ones under the smallest cap."""

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._rank = context.identity.rank
        self._made: list[StagePolicy] = []

    def schedule(self, function: Any) -> Any:
        scheduled = super().schedule(function)

        def run(**kwargs: Any) -> Any:
            outputs = scheduled(**kwargs)
            if not kwargs["forward_only"]:
                Watching.trained.orders.append(self.dynamic.ran)
                Watching.trained.peaks = [policy.peak for policy in self._made]
            return outputs

        return run

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        step = len(self._made)
        if step < len(HINTS):
            policy = self._hinted(layout, stage, HINTS[step])
        elif step == len(HINTS):
            policy = self._replayed(layout, stage)
        else:
            policy = self._random(layout, stage, step)
        self._made.append(policy)
        return policy

    @staticmethod
    def _hinted(layout: Layout, stage: int, name: str) -> StagePolicy:
        return StagePolicy(layout, stage, orders.all_stages(name, layout)[stage], cap=caps.stock_cap(layout))

    @staticmethod
    def _replayed(layout: Layout, stage: int) -> StagePolicy:
        return StagePolicy(layout, stage, Watching.trained.orders[-1], cap=0, strict=True)

    def _random(self, layout: Layout, stage: int, seed: int) -> StagePolicy:
        order = random_order(layout, np.random.default_rng([seed, self._rank]))
        return StagePolicy(layout, stage, order, cap=layout.chunks)


def trained(flags: str, *plugins: type[Plugin], steps: int = STEPS, model: str = TINY) -> Trained:
    """One rank's run, for `run_forked`."""
    losses = train(f"{model} --train-iters {steps} {flags}", plugins=(Watching, *plugins)).losses
    Watching.trained.losses = losses
    return Watching.trained


def assert_bitwise_alike(chosen: list[Trained], stock: list[Trained], chunks: int, steps: int = STEPS) -> None:
    """All ranks' losses and gradients; and that the orders were many, and none held more than the smallest cap."""
    assert [each.losses for each in chosen] == [each.losses for each in stock]
    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert [each.weights for each in chosen] == [each.weights for each in stock]
    assert len(chosen[-1].losses) == steps
    for each in chosen:
        assert len(each.orders) == steps
        assert each.orders[3] == each.orders[2]  # the replayed step
        assert all(peak <= chunks for peak in each.peaks[SMALLEST_CAP_FROM:])
    # Under the smallest cap a stage may have little to choose from.
    assert chunks == 1 or max(len({tuple(order) for order in each.orders}) for each in chosen) > 3
