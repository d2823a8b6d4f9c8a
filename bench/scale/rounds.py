"""Round: all the jobs that a published result is told from, as `python -m bench.scale round --result` plays them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.scale import suites
from bench.scale.scenarios import models
from bench.scale.suites import Options
from bench.scale.work import Unit

RANKS = 1024
LONG_STEPS, GPU_DAYS = (60.0, 30.0, 15.0), 60_000.0
"""Seconds, and GPU-days of all models together."""
SHORT_STEPS, RANK_STEPS = (4.0, 1.0, 0.1), 1e8
"""Seconds, and rank-steps at each of them, of all models together."""
SEEDS_APART = 1000
"""Between the first seeds of one length of steps and the next: equal ones draw the same noise at every length."""
RECALL = {64: 40, 1024: 20, 4096: 10}
"""Ranks → jobs of each slow GPU."""
FAULTS, HANGS = 10, 20
"""Jobs of each fault; jobs of which a rank stops."""


def whole(options: Options) -> Iterator[Unit]:
    """Sizes, steps and numbers of jobs are the round's own; seeds, names and noise as the options say."""
    chosen = [name for name in models(options.recording) if options.wants(name)]
    share = 1 / max(1, len(chosen))
    usual = replace(options, worlds=(RANKS,), step_seconds=LONG_STEPS)
    yield from suites.healthy(replace(usual, gpu_days=GPU_DAYS * share, rank_steps=0))
    for place, seconds in enumerate(SHORT_STEPS, start=1):
        first = options.first + place * SEEDS_APART
        short = replace(usual, step_seconds=(seconds,), first=first, gpu_days=0, rank_steps=RANK_STEPS * share)
        yield from suites.healthy(short)
    for world, jobs in RECALL.items():
        yield from suites.recall(replace(usual, worlds=(world,), trials=jobs))
    yield from suites.faults(replace(usual, trials=FAULTS))
    if not options.only:
        yield from suites.hangs(replace(usual, trials=HANGS))
