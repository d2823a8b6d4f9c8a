"""Workload: what ranks have to do in a step, where that is not the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.scale.layout import Layout
from megatronapp.detector.steps import Floats

ATTENTION_SHARE = 0.3
"""Of a pass: what grows with the sum of squared sequence lengths."""
EXPERTS_SHARE = 0.4
"""Of a pass: what grows with the tokens that a rank's experts are given."""


@dataclass(frozen=True)
class Workload:
    sequence_spread: float = 0.0
    """Standard deviation of the log of a microbatch's sum of squared sequence lengths."""
    replica_spread: float = 0.0
    """The same of what a replica's microbatches of one step share, as where data is bucketed by length."""
    reported: bool = True
    """Whether summaries carry the covariate: tokens and squared lengths, of the first and the last stage, which alone
    read the data."""
    expert_spread: float = 0.0
    """Standard deviation of the log of each expert rank's usual load, and (a third of it) of each step's."""
    last_stage: float = 1.0
    """Its passes over the others': the vocabulary's logits."""

    def begin(self, random: np.random.Generator, layout: Layout) -> WorkSampler:
        return WorkSampler(self, random, layout)


@dataclass(frozen=True, slots=True)
class Work:
    """Of one step."""

    factor: Floats
    """(stages or 1, replicas, tensor ranks or 1, microbatches): of a pass's usual time."""
    squares: Floats | None
    """(replicas, microbatches): sum of squared lengths over the usual one; None: nothing is told."""
    load: Floats | None
    """(replicas,): tokens of a rank's experts over the mean; None: no experts."""


class WorkSampler:
    def __init__(self, what: Workload, random: np.random.Generator, layout: Layout) -> None:
        self._what, self._random, self._layout = what, random, layout
        self._usual = random.normal(0, what.expert_spread, layout.dp) if layout.ep > 1 else None

    def __call__(self) -> Work:
        layout, what = self._layout, self._what
        factor = np.ones((1, layout.dp, 1, layout.microbatches))
        squares = np.ones((layout.dp, layout.microbatches))
        if what.sequence_spread or what.replica_spread:
            of_replica = self._random.normal(0, what.replica_spread, (layout.dp, 1))
            squares = np.exp(of_replica + self._random.normal(0, what.sequence_spread, squares.shape))
            factor = factor * (1 - ATTENTION_SHARE + ATTENTION_SHARE * squares[None, :, None])
        load = self._load()
        if load is not None:
            factor = factor * (1 - EXPERTS_SHARE + EXPERTS_SHARE * load[None, :, None, None])
        if what.last_stage != 1.0 and layout.pp > 1:
            stage = np.where(np.arange(layout.pp) == layout.pp - 1, what.last_stage, 1.0)
            factor = factor * stage[:, None, None, None]
        return Work(factor, squares if what.reported else None, load)

    def _load(self) -> Floats | None:
        """Each expert group shares out its tokens."""
        if self._usual is None:
            return None
        drawn = np.exp(self._usual + self._random.normal(0, self._what.expert_spread / 3, len(self._usual)))
        groups = drawn.reshape(-1, self._layout.ep)
        load: Floats = (groups / groups.mean(axis=1, keepdims=True)).reshape(-1)
        return load
