"""Many steps under MegaDPP, each in a random order, with operations and messages that are late at random."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.trainer.pipeline.native import NativeTransport
from megatronapp.trainer.pipeline.port import Message
from megatronapp.trainer.plugins.base import PluginContext, Preparation
from megatronapp.trainer.plugins.dpp import DppPlugin
from tests.support.forked import run_forked
from tests.support.random_pipelines import random_order
from tests.support.varied_orders import StockUnderDpp, Trained, Watching, trained

LANES = ("shm", "tcp", "ucx")
STAGES, CHUNKS = 2, 2
FLAGS = (
    f"--pipeline-model-parallel-size {STAGES} --num-virtual-stages-per-pipeline-rank {CHUNKS} "
    "--use-dpp --dpp-policy interleaved-zb"
)
CAPS = (CHUNKS, CHUNKS, CHUNKS + 1, CHUNKS + 2, 2 * CHUNKS + 1)
"""In turns."""
LATE_SECONDS, LATE_SHARE = 0.004, 0.3


class Delayed(DppPlugin):
    """A random order in each step, under CAPS in turns; one message to a peer at a time, in an order of its own."""

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        return replace(super().prepare(args, preparation), p2p_in_flight_bytes=1)

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._rank = context.identity.rank
        self._random = random.Random(self._rank)
        self._made: list[StagePolicy] = []
        assert isinstance(self._pipeline.transport, NativeTransport)
        self._pipeline.transport.late_seconds = self._late_seconds

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            time.sleep(self._draw())
            return function(*args, **kwargs)

        return super().forward_step(run)

    def schedule(self, function: Any) -> Any:
        scheduled = super().schedule(function)

        def run(**kwargs: Any) -> Any:
            outputs = scheduled(**kwargs)
            Watching.trained.peaks = [policy.peak for policy in self._made]
            return outputs

        return run

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        step = len(self._made)
        order = random_order(layout, np.random.default_rng([step, self._rank]))
        self._made.append(StagePolicy(layout, stage, order, cap=CAPS[step % len(CAPS)]))
        return self._made[-1]

    def _late_seconds(self, _: Message) -> float:
        return self._draw()

    def _draw(self) -> float:
        return self._random.expovariate(1 / LATE_SECONDS) if self._random.random() < LATE_SHARE else 0.0


def assert_delays_change_nothing(lane: str, steps: int) -> dict[int, float]:
    """Losses and gradients are stock's, no step hangs, and none holds more than its cap. Returns the peaks by cap."""
    run = partial(trained, steps=steps)
    flags, timeout = f"{FLAGS} --dpp-transport {lane}", 60 + steps
    stock: list[Trained] = run_forked(STAGES, run, flags, StockUnderDpp, timeout=timeout)
    delayed: list[Trained] = run_forked(STAGES, run, flags, Delayed, timeout=timeout)
    assert [each.losses for each in delayed] == [each.losses for each in stock]
    assert [each.gradients for each in delayed] == [each.gradients for each in stock]
    peaks = [(CAPS[step % len(CAPS)], peak) for each in delayed for step, peak in enumerate(each.peaks)]
    assert len(peaks) == STAGES * steps
    assert all(peak <= cap for cap, peak in peaks)
    return {cap: max(peak for of, peak in peaks if of == cap) for cap in sorted(set(CAPS))}
