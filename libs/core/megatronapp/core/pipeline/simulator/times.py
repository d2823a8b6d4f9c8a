"""How long operations take: given times, and what makes them differ from one microbatch to the next.

All draws are made for F, B and W of a whole pipeline, so that schedules with and without the split, static and dynamic,
are compared on the same times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import Floats, PassTimes, Whole
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout

MAX_STEP_NS = 1 << 50
"""Thirteen days."""


def equal_times(layout: Layout, forward_ns: float, dgrad_ns: float, wgrad_ns: float) -> PassTimes:
    """Times of one microbatch on all chunks of a stage, shared equally. Raises UsageError."""
    given = np.array([forward_ns, dgrad_ns, wgrad_ns], np.float64)
    if not (np.isfinite(given).all() and (given[:2] > 0).all() and given[2] >= 0):
        raise UsageError("forward and dgrad times must be positive numbers, wgrad at least 0")
    if given.sum() * layout.microbatches * layout.stages > MAX_STEP_NS:
        raise UsageError("such a step would take weeks; times are in milliseconds")
    return np.broadcast_to(given[:, None, None] / layout.chunks, (3, layout.stages, layout.chunks)).copy()


@dataclass(frozen=True, slots=True)
class Markov:
    """A stage that is slow at times: it turns slow with probability `enter` from one microbatch to the next, recovers
    with `leave`, and takes `ratio` times as long meanwhile."""

    ratio: float
    enter: float
    leave: float

    def draw(self, random: np.random.Generator, stages: int, microbatches: int) -> Floats:
        """Factors by stage and microbatch."""
        slow = random.random(stages) < self.enter / max(self.enter + self.leave, 1e-12)
        factors = np.empty((stages, microbatches))
        for microbatch in range(microbatches):
            factors[:, microbatch] = np.where(slow, self.ratio, 1.0)
            drawn = random.random(stages)
            slow = np.where(slow, drawn >= self.leave, drawn < self.enter)
        return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """What makes times differ. Coefficients of variation are of lognormal factors with mean 1.

    `jitter_cv`: each operation on each of the `tensor` ranks of a stage, the slowest of which sets the pace.
    `length_cv`: each microbatch, everywhere alike. `slow_stages`: constant factors. `late_ratio` of messages come
    `late_ns` later. `samples`: measured times by (kind, stage, chunk), drawn in place of the given ones.
    `backward_ratio`: how many times as long B and W take as given. Raises UsageError.
    """

    jitter_cv: float = 0.0
    length_cv: float = 0.0
    tensor: int = 1
    slow_stages: Mapping[int, float] = field(default_factory=dict)
    markov: Markov | None = None
    late_ratio: float = 0.0
    late_ns: int = 0
    samples: Mapping[tuple[Kind, int, int], Floats] = field(default_factory=dict)
    backward_ratio: float = 1.0

    def __post_init__(self) -> None:
        if min(self.jitter_cv, self.length_cv, self.late_ns) < 0 or max(self.jitter_cv, self.length_cv) > 10:
            raise UsageError(
                "a coefficient of variation is from 0 to 10, and a message can't come earlier than it does"
            )
        chances = [self.late_ratio, *([self.markov.enter, self.markov.leave] if self.markov else [])]
        if not all(0 <= chance <= 1 for chance in chances):
            raise UsageError("the share of late messages and the chances to turn slow and to recover are from 0 to 1")
        factors = [*self.slow_stages.values(), *([self.markov.ratio] if self.markov else [])]
        if not all(0 < factor < 1000 for factor in factors):
            raise UsageError("a stage can be 0.001 to 1000 times as slow")
        if self.tensor < 1:
            raise UsageError(f"a stage has at least one tensor-parallel rank, not {self.tensor}")

    @property
    def random(self) -> bool:
        """Whether two draws differ."""
        return bool(
            self.jitter_cv or self.length_cv or self.markov or self.samples or (self.late_ratio and self.late_ns)
        )

    def draw(self, layout: Layout, times: PassTimes, random: np.random.Generator) -> tuple[Whole, Whole]:
        """(durations, late) of one replica's step, by stage and operation of the layout, in ns.

        Raises UsageError when a slow stage is none of the layout's.
        """
        stages, chunks, microbatches = layout.stages, layout.chunks, layout.microbatches
        all_ns = _of_microbatches(layout, times)
        for (kind, stage, chunk), measured in self.samples.items():
            all_ns[stage, kind, chunk] = random.choice(measured, microbatches)
        if self.jitter_cv:
            ranks = lognormal(random, self.jitter_cv, (self.tensor, *all_ns.shape))
            all_ns *= ranks.max(axis=0)
        if self.length_cv:
            all_ns *= lognormal(random, self.length_cv, (microbatches,))
        if self.markov:
            all_ns *= self.markov.draw(random, stages, microbatches)[:, None, None, :]
        all_ns[:, Kind.BACKWARD :] *= self.backward_ratio
        for stage, factor in self.slow_stages.items():
            if not 0 <= stage < stages:
                raise UsageError(f"no stage {stage} in a pipeline of {stages}; stages count from 0")
            all_ns[stage] *= factor
        late = self.late_ns * (random.random((stages, 2, chunks, microbatches)) < self.late_ratio)
        return durations_of(layout, all_ns), _messages(layout, late)


def lognormal(random: np.random.Generator, cv: float, shape: tuple[int, ...]) -> Floats:
    """Factors with mean 1 and this coefficient of variation."""
    variance = np.log1p(cv * cv)
    return random.lognormal(-variance / 2, np.sqrt(variance), shape)


def constant_durations(layout: Layout, times: PassTimes) -> Whole:
    """Each microbatch takes the same: (stages, operations) in whole ns."""
    return durations_of(layout, _of_microbatches(layout, times))


def _of_microbatches(layout: Layout, times: PassTimes) -> Floats:
    return np.repeat(times.transpose(1, 0, 2)[..., None], layout.microbatches, axis=3)


def durations_of(layout: Layout, all_ns: Floats) -> Whole:
    """(stages, operations) in whole ns, of times by (stage, F B W, chunk, microbatch); without the split B holds W."""
    if not layout.split:
        all_ns = np.stack([all_ns[:, Kind.FORWARD], all_ns[:, Kind.BACKWARD] + all_ns[:, Kind.WGRAD]], axis=1)
    whole = np.maximum(1, np.rint(all_ns)).astype(np.int64)
    return whole.reshape(layout.stages, layout.operations)


def _messages(layout: Layout, late: Whole) -> Whole:
    """Of the messages that F and B need; W need none."""
    delays = np.zeros((layout.stages, len(layout.kinds), layout.chunks, layout.microbatches), np.int64)
    delays[:, :2] = late
    return delays.reshape(layout.stages, layout.operations)
