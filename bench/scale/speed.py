"""Speed: how long the engine takes to judge a step, from its whole StepTable to the verdict. Goals: 66 ms at 4,096
ranks, 250 ms at 16,384."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.scale.faults import Fault, What
from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import of_world
from bench.scale.scenarios import QUIET

WARM_UP, ONSET, STEPS = 28, 34, 44
"""Steps until ranks have a history, until one is slow, and all."""
GOALS_MILLISECONDS = {4096: 66.0, 16_384: 250.0}


@dataclass(frozen=True)
class Speed:
    world: int
    median_milliseconds: float
    p90_milliseconds: float


def measure(world: int, seed: int = 0) -> Speed:
    """Of a job with a history, first healthy, then with one slow rank."""
    pp, tp = (16, 8) if world % 128 == 0 and world >= 1024 else (1, 1)
    layout = of_world(world, pp, tp, microbatches=32)
    job = Job(Spec(layout, 15.0, QUIET, faults=(Fault(What.COMPUTE, (world // 3,), 1.05, ONSET),)), seed)
    feed, taken = TableFeed(job), []
    for _ in range(STEPS):
        before = feed.engine_seconds
        for _ in feed.step(job.step()):
            pass
        taken.append(1e3 * (feed.engine_seconds - before))
    judged = taken[WARM_UP:]
    return Speed(world, float(np.median(judged)), float(np.quantile(judged, 0.9)))


def line(speed: Speed) -> str:
    goal = GOALS_MILLISECONDS.get(speed.world)
    text = f"{speed.world:6} ranks: {speed.median_milliseconds:6.1f} ms median, {speed.p90_milliseconds:6.1f} ms p90"
    return text + (f"   goal {goal:.0f}" if goal else "")
