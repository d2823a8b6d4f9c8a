"""Suites: which trials answer which question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.scale.hangs import Stop
from bench.scale.scenarios import FAULTS, HEALTHY_STEPS, LARGE, MESSAGE_TROUBLE, ONE_SIZE, Trial, models
from bench.scale.seeds import SEEDS_OF_ROUND, TUNING, seeds

DAY = 86_400.0
RECALL_SCENARIOS = ("slow", "first-step", "restart")
USUAL, HIDDEN, INTERMITTENT = 1.05, 1.10, 1.20
"""Sizes of slow GPUs."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    round: int = TUNING
    """Of seeds."""
    first: int = 0
    """Place of the first seed in its round."""
    worlds: tuple[int, ...] = (1024,)
    step_seconds: tuple[float, ...] = (15.0, 30.0, 60.0)
    sizes: tuple[float, ...] = (1.03, 1.05, 1.10)
    gpu_days: float = 200.0
    """Of each healthy model, at least."""
    rank_steps: float = 0.0
    """The same."""
    trials: int = 10
    """Of each fault."""
    realtime_jobs: int = 1
    only: tuple[str, ...] = ()
    """Names of models, or faults; empty: all."""
    model: str = "quiet"
    """Of the faulty jobs."""
    recording: str = ""
    layouts: str = LARGE

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only


def healthy(options: Options) -> Iterator[Trial]:
    """Models in turn, until each has had its share of GPU-days and rank-steps."""
    for model in filter(options.wants, models(options.recording)):
        days, rank_steps = 0.0, 0.0
        for place, seed in enumerate(seeds(SEEDS_OF_ROUND - options.first, options.round, options.first)):
            if place and days >= options.gpu_days and rank_steps >= options.rank_steps:
                break
            world = options.worlds[place % len(options.worlds)]
            seconds = options.step_seconds[place % len(options.step_seconds)]
            days += world * seconds * HEALTHY_STEPS / DAY
            rank_steps += world * HEALTHY_STEPS
            yield Trial(
                "healthy",
                model,
                world,
                seconds,
                seed,
                HEALTHY_STEPS,
                model,
                recording=options.recording,
                layouts=options.layouts,
            )


def recall(options: Options) -> Iterator[Trial]:
    """One slow GPU: in the middle of a run, from its first step, across a restart."""
    for scenario in filter(options.wants, RECALL_SCENARIOS):
        for size in options.sizes:
            for world in options.worlds:
                yield from _faulty("recall", scenario, world, size, options)


def faults(options: Options) -> Iterator[Trial]:
    """All other kinds of trouble."""
    for scenario in FAULTS:
        if options.wants(scenario) and (options.only or scenario not in RECALL_SCENARIOS):
            for world in options.worlds:
                yield from _faulty("faults", scenario, world, size_of(scenario), options)


def hangs(options: Options) -> Iterator[Stop]:
    """A rank that stops for good."""
    for world in options.worlds:
        for seed in seeds(options.trials, options.round, options.first):
            yield Stop(world, seed)


def size_of(scenario: str) -> float:
    """What is slow now and then, or hard to see, is slower."""
    if scenario in ONE_SIZE:
        return ONE_SIZE[scenario]
    return INTERMITTENT if scenario == "intermittent" else HIDDEN if scenario in MESSAGE_TROUBLE else USUAL


def _faulty(suite: str, scenario: str, world: int, size: float, options: Options) -> Iterator[Trial]:
    for place, seed in enumerate(seeds(options.trials, options.round, options.first)):
        seconds = options.step_seconds[place % len(options.step_seconds)]
        yield Trial(suite, scenario, world, seconds, seed, 0, options.model, size, options.recording, options.layouts)


def worlds_of(values: Sequence[int]) -> tuple[int, ...]:
    """Raises ValueError for what nobody simulates."""
    wrong = [value for value in values if not 8 <= value <= 16_384 or value % 8]
    if wrong:
        raise ValueError(f"jobs have 8 to 16,384 ranks, a multiple of 8; not {', '.join(map(str, wrong))}")
    return tuple(values)
