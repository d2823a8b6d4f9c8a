"""Whole training steps: replicas, what comes behind the pipeline, and how far all is from what is possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.pipeline.arrays import Floats, PassTimes, Whole
from megatronapp.core.pipeline.choosing import Host
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.bound import step_bound_ns
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Engine, Run, Schedule, run
from megatronapp.core.pipeline.simulator.times import Variation

NO_HOST = Host(lead_ns=0)
"""Choices are made when they are needed, and launched in no time: as on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What follows the last operation: `grad_sync_ns` with the other replicas of a stage, then the optimizer. With
    `barrier` (the gradients' norm) all stages of all replicas begin the optimizer together; without, each stage goes on
    alone, and the step takes as long as the slowest of them needs from its own begin. Raises UsageError."""

    grad_sync_ns: int = 0
    optimizer_ns: int = 0
    barrier: bool = True

    def __post_init__(self) -> None:
        if min(self.grad_sync_ns, self.optimizer_ns) < 0:
            raise UsageError("gradient sync and optimizer can't take less than no time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for all schedules that are compared."""

    variation: Variation
    links: Links
    end: StepEnd
    host: Host = NO_HOST
    replicas: int = 1
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.draws < 1:
            raise UsageError("at least one replica and one draw are simulated")


def with_backward(setting: Setting, ratio: float) -> Setting:
    """The same, with backwards that take so many times as long."""
    return replace(setting, variation=replace(setting.variation, backward_ratio=ratio))


@dataclass(frozen=True, slots=True)
class Steps:
    """Of several draws of a step. Arrays by draw, in ns."""

    layout: Layout
    step_ns: Floats
    pipeline_ns: Floats
    bound_ns: Floats
    """Of the pipelines."""
    bubble: Floats
    """1 − work of a stage ÷ time of the pipelines, mean over stages and replicas."""
    peaks: tuple[float, ...]
    """Most activations in flight, by stage."""
    shown: Run
    """The first replica of the first draw."""

    @property
    def over_bound(self) -> float:
        """Time of the pipelines ÷ their bound − 1, mean over draws."""
        return float((self.pipeline_ns / self.bound_ns).mean() - 1)


def draw_runs(
    layout: Layout, schedule: Schedule, times: PassTimes, setting: Setting, engine: Engine | None
) -> Iterator[list[tuple[Run, int]]]:
    """For each draw, (run, bound in ns) of each replica. The same seed draws the same times for every schedule of one
    number of chunks."""
    wiring = wire(layout, setting.links)
    crosses = wiring.crosses(layout)
    variation, choosing = setting.variation, setting.host.choosing(layout, times)
    for draw in range(setting.draws if variation.random else 1):
        runs = []
        for replica in range(setting.replicas if variation.random else 1):
            random = np.random.default_rng([setting.seed, draw, replica])
            durations, late = variation.draw(layout, times, random)
            done = run(layout, schedule, durations, wiring, late=late * crosses, choosing=choosing, engine=engine)
            if not done.complete:
                raise TrainingError(f"{schedule.name} stops for ever: {stuck(done)}")
            runs.append((done, step_bound_ns(layout, durations, wiring, barrier=setting.end.barrier)))
        yield runs


def simulate_steps(
    layout: Layout, schedule: Schedule, times: PassTimes, setting: Setting, engine: Engine | None = None
) -> Steps:
    """Raises TrainingError when stages wait for each other for ever, UsageError for what does not fit the layout."""
    step_ns, pipeline_ns, bounds, bubbles = [], [], [], []
    peaks = np.zeros(layout.stages)
    shown = None
    for runs in draw_runs(layout, schedule, times, setting, engine):
        shown = shown or runs[0][0]
        pipeline = max(pipeline_time_ns(done, barrier=setting.end.barrier) for done, _ in runs)
        pipeline_ns.append(pipeline)
        step_ns.append(_step_ns([done for done, _ in runs], setting.end))
        bounds.append(max(bound for _, bound in runs))
        bubbles.append(1 - np.mean([done.durations.sum(axis=1).mean() for done, _ in runs]) / pipeline)
        peaks = np.maximum(peaks, np.max([done.peaks for done, _ in runs], axis=0))
    assert shown is not None, "there is at least one draw"  # noqa: S101
    return Steps(
        layout, np.array(step_ns, float), np.array(pipeline_ns, float), np.array(bounds, float), np.array(bubbles),
        tuple(peaks.tolist()), shown,
    )  # fmt: skip


def pipeline_time_ns(done: Run, *, barrier: bool) -> int:
    """From first begin to last end; without a barrier the longest of the stages' own."""
    return done.end_ns if barrier else int(_spans(done).max())


def _spans(done: Run) -> Whole:
    spans: Whole = done.ends.max(axis=1) - done.begins.min(axis=1)
    return spans


def _step_ns(runs: list[Run], end: StepEnd) -> int:
    """A stage's gradients are synchronised when the last replica has them."""
    if end.barrier:
        return max(done.end_ns for done in runs) + end.grad_sync_ns + end.optimizer_ns
    ready = np.max([done.ends.max(axis=1) for done in runs], axis=0)
    begun = np.min([done.begins.min(axis=1) for done in runs], axis=0)
    return int((ready - begun).max()) + end.grad_sync_ns + end.optimizer_ns


def stuck(done: Run) -> str:
    """What stages did last, and how much each has left."""
    said = []
    for stage, order in enumerate(done.orders()):
        left = done.layout.operations - len(order)
        if left:
            said.append(f"stage {stage} after {order[-1] if order else 'nothing'} ({left} left)")
    return "; ".join(said[:4]) + ("; …" if len(said) > 4 else "")
