"""Noise: how the ranks of a healthy job differ, and how they vary from step to step.

Each source is a value that says how large it is. Begun with a generator and a layout it becomes a sampler: called once
a step it gives, of every rank, the log of the factor by which its compute takes longer. A job's noise is the
sum of its sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bench.scale.layout import Layout
from bench.scale.recording import Recording
from megatronapp.detector.steps import Floats

Sampler = Callable[[], Floats]


class Noise(Protocol):
    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler: ...


@dataclass(frozen=True)
class DeviceSpread:
    """Devices differ, and stay as they are: 0.4 % within a job, up to 8 % in a fleet (Sinha et al., SC'22)."""

    sigma: float

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        constant = random.normal(0, self.sigma, layout.world)
        return lambda: constant


@dataclass(frozen=True)
class Jitter:
    """Independent from step to step. With few degrees of freedom its tails are heavy (Student's t, scaled to sigma)."""

    sigma: float
    freedom: float = math.inf

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        if math.isinf(self.freedom):
            return lambda: self.sigma * random.standard_normal(layout.world)
        scale = self.sigma * math.sqrt((self.freedom - 2) / self.freedom)
        return lambda: np.clip(scale * random.standard_t(self.freedom, layout.world), -1.0, 3.0)


@dataclass(frozen=True)
class Outliers:
    """Now and then a rank's step takes so many times as long."""

    share: float
    ratio: float

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        return lambda: np.where(random.random(layout.world) < self.share, math.log(self.ratio), 0.0)


@dataclass(frozen=True)
class Drift:
    """A first-order autoregression of each rank: temperature, clocks, what else runs on the host."""

    sigma: float
    memory: float = 0.95

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        state = random.normal(0, self.sigma, layout.world)
        fresh = self.sigma * math.sqrt(1 - self.memory**2)

        def sample() -> Floats:
            state[:] = self.memory * state + fresh * random.standard_normal(layout.world)
            return state.copy()

        return sample


@dataclass(frozen=True)
class Common:
    """What all ranks share in a step."""

    sigma: float

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        return lambda: np.full(layout.world, random.normal(0, self.sigma))


@dataclass(frozen=True)
class NodeBursts:
    """All ranks of a node are slower for some steps: other load on its host, its power, its cooling."""

    share: float
    """Of the node-steps in which one begins."""
    steps: float
    """Mean length."""
    ratio: float
    """Typical size; its excess over 1 varies by a factor of two."""

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        node, left, size = layout.node, np.zeros(layout.nodes), np.zeros(layout.nodes)

        def sample() -> Floats:
            begins = (left <= 0) & (random.random(layout.nodes) < self.share)
            left[begins] = random.geometric(1 / self.steps, int(begins.sum()))
            size[begins] = np.log1p((self.ratio - 1) * 2.0 ** random.normal(0, 1, int(begins.sum())))
            slow: Floats = np.where(left > 0, size, 0.0)[node]
            left[:] -= 1
            return slow

        return sample


@dataclass(frozen=True)
class Recorded:
    """Blocks of what the ranks of a real run did, drawn anew for each rank: its jitter, drift and outliers, and how
    they follow each other. Two recorded GPUs show no spread of devices: that stays modelled."""

    recording: Recording = field(repr=False)
    block: int = 64

    def begin(self, random: np.random.Generator, layout: Layout) -> Sampler:
        source = self.recording.compute
        steps, ranks = source.shape
        block = min(self.block, steps)
        who = random.integers(ranks, size=layout.world)
        at = random.integers(steps, size=layout.world)
        left = random.integers(1, block + 1, size=layout.world)

        def sample() -> Floats:
            over = left <= 0
            at[over] = random.integers(steps, size=int(over.sum()))
            who[over] = random.integers(ranks, size=int(over.sum()))
            left[over] = block
            values: Floats = source[at % steps, who]
            at[:] += 1
            left[:] -= 1
            return values

        return sample


@dataclass(frozen=True)
class Beside:
    """What varies beside compute: shares of the step, and logs."""

    host: float = 0.002
    """Mean share that a rank loses on its host before its first pass, exponential."""
    stall_share: float = 0.0
    """Of the rank-steps in which a host stands still; and for how much of a step, on average."""
    stall: float = 0.05
    data: float = 0.001
    transfer: float = 0.08
    """Of the time that messages and collectives take, a step and pair or group."""
    microbatch: float = 0.01
    """Of a pass, beyond its rank's step."""
    optimizer: float = 0.01
    garbage_every: int = 0
    """Each rank collects garbage in one of so many steps, at a step of its own; 0: never."""
    garbage: float = 0.03


def total(sources: list[Sampler], world: int) -> Floats:
    """Log of the factor of every rank."""
    together = np.zeros(world)
    for source in sources:
        together += source()
    return together
