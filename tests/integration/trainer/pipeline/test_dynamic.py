"""Stages that choose their next operation train bit for bit as megatron-core's schedules do, in any order."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import pytest

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import RankFailedError, run_forked
from tests.support.random_pipelines import random_order
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS = 8
NATIVE = "--p2p-transport native --global-batch-size 16"
TWO = f"{NATIVE} --pipeline-model-parallel-size 2"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank 2"
LAYOUTS = {
    "PP 2": (2, TWO),
    "PP 2 × VPP 2, recompute": (
        2,
        f"{TWO} {VIRTUAL} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ),
    "PP 2 × VPP 2 × DP 2, overlap": (
        4,
        f"{TWO} {VIRTUAL} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
}


@dataclass
class Trained:
    """What one rank saw."""

    losses: list[float] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    """Of each step, before the optimizer changes them: a digest of all."""
    orders: list[list[Operation]] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)


class Watching(Plugin):
    """Keeps the gradients' digests."""

    name = "watching"
    trained: Trained
    context: PluginContext

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.context = context
        cls.trained = Trained()
        return plugin

    def schedule(self, function: Any) -> Any:
        def run(**kwargs: Any) -> Any:
            outputs = function(**kwargs)
            if not kwargs["forward_only"]:
                digest = hashlib.sha256()
                for chunk in kwargs["model"]:
                    for parameter in chunk.parameters():
                        digest.update(parameter.main_grad.detach().float().numpy().tobytes())
                self.trained.gradients.append(digest.hexdigest())
            return outputs

        return run


class Choosing(Watching):
    """Another order in each step: hints, random ones under the smallest cap, and what the step before ran, replayed."""

    name = "choosing"

    def configure(self, config: Any) -> None:
        config.deallocate_pipeline_outputs = False

    def schedule(self, function: Any) -> Any:
        from megatronapp.trainer.pipeline.dynamic import DynamicSchedule

        assert self.context.pipeline is not None
        self.policies: list[StagePolicy] = []
        self.dynamic = DynamicSchedule(function, self.context.pipeline, self.policy)
        watched = super().schedule(self.dynamic)

        def run(**kwargs: Any) -> Any:
            outputs = watched(**kwargs)
            if not kwargs["forward_only"]:
                self.trained.orders.append(self.dynamic.ran)
            self.trained.peaks = [policy.peak for policy in self.policies]
            return outputs

        return run

    def policy(self, layout: Layout, stage: int) -> StagePolicy:
        make: list[Callable[[], StagePolicy]] = [
            partial(self.hinted, layout, stage, "interleaved"),
            partial(self.hinted, layout, stage, "depth-first"),
            partial(self.hinted, layout, stage, "breadth-first"),
            partial(self.replayed, layout, stage),
            *[partial(self.random, layout, stage, seed) for seed in range(STEPS - 4)],
        ]
        self.policies.append(make[len(self.policies) % len(make)]())
        return self.policies[-1]

    def hinted(self, layout: Layout, stage: int, name: str) -> StagePolicy:
        return StagePolicy(layout, stage, orders.all_stages(name, layout)[stage], cap=caps.stock_cap(layout))

    def replayed(self, layout: Layout, stage: int) -> StagePolicy:
        return StagePolicy(layout, stage, self.dynamic.ran, cap=0, strict=True)

    def random(self, layout: Layout, stage: int, seed: int) -> StagePolicy:
        rank = self.context.identity.rank
        order = random_order(layout, np.random.default_rng([seed, rank]))
        return StagePolicy(layout, stage, order, cap=layout.chunks)


def rank(flags: str, plugin: type[Watching]) -> Trained:
    losses = train(f"{TINY} --train-iters {STEPS} {flags}", plugins=(plugin,)).losses
    plugin.trained.losses = losses
    return plugin.trained


@pytest.mark.timeout(400)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_losses_and_gradients_are_bitwise_stocks_in_every_order(layout: tuple[int, str]) -> None:
    ranks, flags = layout
    evaluated = f"{flags} --eval-interval 4 --eval-iters 1"

    stock = run_forked(ranks, rank, evaluated, Watching, timeout=180)
    chosen = run_forked(ranks, rank, evaluated, Choosing, timeout=180)

    assert [each.losses for each in chosen] == [each.losses for each in stock]
    assert [each.gradients for each in chosen] == [each.gradients for each in stock]
    assert len(chosen[-1].losses) == STEPS
    chunks = 2 if VIRTUAL in flags else 1
    for each in chosen:
        assert len(each.orders) == STEPS
        assert each.orders[3] == each.orders[2]  # the replayed step
        assert all(peak <= chunks for peak in each.peaks[4:])  # random orders under the smallest cap
        assert chunks == 1 or len({tuple(order) for order in each.orders}) > 3  # they were not all the same


@pytest.mark.parametrize(
    ("ranks", "flags", "said"),
    [
        (2, "--pipeline-model-parallel-size 2", "add --p2p-transport native"),
        (4, f"{TWO} --tensor-model-parallel-size 2", "can't run tensor parallelism yet"),
    ],
)
def test_what_it_cannot_run_is_refused(ranks: int, flags: str, said: str) -> None:
    with pytest.raises(RankFailedError, match=said):
        run_forked(ranks, rank, flags, Choosing)
