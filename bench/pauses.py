"""Hangs told of jobs that only pause, and pauses that are hangs: starts, checkpoints, evaluations of 8 to 1,024 ranks.

Simulated ranks send what real ones do (a hello, a heartbeat a second, a summary of each step) to the detector's engine.
Goal: of 10,000 events that are no hang none wakes anybody; every hang does.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bench.scale.layout import Layout
from megatronapp.detector.patience import Patience
from megatronapp.v1 import trace_pb2
from tests.support.detecting import detect
from tests.support.pausing import CHECKPOINT, EVALUATION, STEP, Habits, PausingJob, RandomJob, log_uniform
from tests.support.simulated import Job, NoiseModel

EVENTS = 10_000
SHARES = {8: 0.922, 64: 0.06, 256: 0.012, 512: 0.004, 1024: 0.002}
"""Of the events, by ranks: what a heartbeat costs the engine does not depend on the ranks, and there is one of each."""
EVENTS_A_JOB = 20
HANGS = {8: 60, 64: 18, 512: 3, 1024: 3}
"""Jobs that end in a hang, for each of the three places."""
NOISE = NoiseModel(step=0.01, outliers=0.001, outlier=math.log(2))
"""One percent, and one step in a thousand twice as long."""
BEAT_SECONDS = 1.0
YOUNG_JOBS, YOUNG_STEPS = 20_000, 24
YOUNG_WORLDS = (4, 8, 16, 64)
VARIED = {0.01: True, 0.03: True, 0.1: False}
"""Noise of young jobs' steps, and whether none may page: with that of 10 % some do where one takes twice as long."""
PLACES = {STEP: "step", CHECKPOINT: "checkpoint", EVALUATION: "evaluation"}


def pausing(world: int, events: int) -> tuple[int, int, int]:
    """Events, pages for hangs, other pages."""
    seen, hangs, others, seed = 0, 0, 0, 0
    while seen < events:
        job = RandomJob(world, seed)
        job.live(min(EVENTS_A_JOB, events - seen))
        seen, seed = seen + job.events, seed + 1
        hangs, others = hangs + len(job.reported.hangs()), others + len(job.reported.others())
    return seen, hangs, others


def hanging(world: int, phase: trace_pb2.Phase, seed: int) -> tuple[float | None, float]:
    """Seconds until the page, and the longest that is allowed for."""
    random = np.random.default_rng((seed, world, phase))
    habits = replace(
        Habits.draw(random),
        checkpoint=log_uniform(random, 1, 120),
        evaluation=log_uniform(random, 5, 120),
        ahead=False,
        moving=False,
    )
    job = RandomJob(world, seed, habits)
    job.live(14)
    job.reported.steps(max(4, round(8 / habits.step)))  # of short steps several go by between two heartbeats
    usual = {STEP: habits.step, CHECKPOINT: habits.checkpoint, EVALUATION: habits.evaluation}[phase]
    least = 5.0 if phase == STEP else 90.0
    # The longest of some that vary by 20 %, one of which may have taken three times as long; a heartbeat each side.
    limit = max(least, 4 * (usual * 3 * 1.8 + 1)) + 2
    return job.reported.hang(phase, world // 2, limit_seconds=limit), usual


def without_collectives(world: int) -> PausingJob:
    """8 s of each step in which nothing moves."""
    job = PausingJob(Layout(pp=1, dp=world), 10.0, quiet=0.8)
    job.start(20, 12)
    job.steps(30)
    return job


def long_first_step() -> PausingJob:
    job = PausingJob(Layout(pp=1, dp=520), 5.0)
    job.start(10, 12)
    job.steps(3)
    return job


def long_start(*, old: bool) -> PausingJob:
    job = PausingJob(Layout(pp=1, dp=520), 5.0, old=old)
    job.start(180, 180)
    job.steps(3)
    if not old:
        job.checkpoint(180)
        job.steps(3)
    return job


def checkpoints(world: int) -> PausingJob:
    """40 s each tenth step of 120."""
    job = PausingJob(Layout(pp=1, dp=world), 4.0, seed=1, noise=NOISE)
    job.start(20, 6)
    for _ in range(12):
        job.steps(10)
        job.checkpoint(40)
    return job


def seen_before() -> Iterator[tuple[str, PausingJob]]:
    """What woke people for nothing in the first version."""
    for world in (256, 384, 512, 1024):
        yield f"{world} ranks, 30 steps, 8 s of each without collectives", without_collectives(world)
    yield "520 ranks, first step of 12 s", long_first_step()
    yield "520 ranks, start, first step and checkpoint of 180 s each", long_start(old=False)
    yield "520 ranks that do not tell their phase, start and first step of 180 s", long_start(old=True)
    yield "1024 ranks, 120 steps, a checkpoint of 40 s each tenth", checkpoints(1024)


def outliers() -> tuple[int, int]:
    """Pages and suspicions of 1,024 healthy ranks in 200 steps of 15 s."""
    verdicts = detect(Job(Layout(pp=1, dp=1024), NOISE, seed=1, compute_seconds=13.6), 200)
    return len(verdicts.paged()), len(verdicts.opened())


def report_pauses(events: int) -> int:
    print(
        "\nstarts, checkpoints and evaluations\n  ranks  events  hang pages  other pages  processor seconds", flush=True
    )
    total, wrong = 0, 0
    for world, share in SHARES.items():
        begin = time.process_time()
        seen, hangs, others = pausing(world, max(1, round(events * share)))
        total, wrong = total + seen, wrong + hangs
        print(f"{world:7} {seen:7} {hangs:11} {others:12} {time.process_time() - begin:18.0f}", flush=True)
    print(f"    all {total:7} {wrong:11}")
    return wrong


def young(jobs: int, noise: float) -> int:
    """Pages of jobs in their first steps, of 5 to 60 s, as their patience alone tells: of steps in which nothing moves
    some vary, and one of a rank in a thousand takes twice as long."""
    random, pages = np.random.default_rng(round(1 / noise)), 0
    for _ in range(jobs):
        patience, ranks, usual = Patience(), int(random.choice(YOUNG_WORLDS)), log_uniform(random, 5, 60)
        twice = random.random(YOUNG_STEPS) > 0.999**ranks
        for seconds in usual * np.exp(random.normal(0, noise, YOUNG_STEPS)) * np.where(twice, 2, 1):
            pages += seconds + BEAT_SECONDS > patience.of([STEP])
            patience.learn(STEP, float(seconds), ranks)
    return pages


def report_young(jobs: int) -> int:
    print("\nyoung jobs\n  noise  steps  hang pages", flush=True)
    wrong = 0
    for noise, counted in VARIED.items():
        pages = young(jobs, noise)
        wrong += pages if counted else 0
        print(f"{noise:6.0%} {jobs * YOUNG_STEPS:7} {pages:11}", flush=True)
    return wrong


def report_hangs(share: float) -> int:
    print("\nhangs\n  ranks  in          found      seconds to the page (× the usual): median, longest", flush=True)
    missed = 0
    for world, jobs in HANGS.items():
        for phase, place in PLACES.items():
            stalls = [hanging(world, phase, seed) for seed in range(max(1, round(jobs * share)))]
            found = [(seconds, seconds / usual) for seconds, usual in stalls if seconds is not None]
            missed += len(stalls) - len(found)
            middle = np.median(found, axis=0) if found else (np.nan, np.nan)
            longest = max(found, default=(np.nan, np.nan))
            print(
                f"{world:7}  {place:10} {len(found):4} of {len(stalls):3}"
                f"  {middle[0]:6.1f} ({middle[1]:.1f} ×), {longest[0]:6.1f} ({longest[1]:.1f} ×)",
                flush=True,
            )
    return missed


def report_seen_before() -> int:
    print("\nseen before\n  hang pages  other pages", flush=True)
    wrong = 0
    for name, job in seen_before():
        wrong += len(job.hangs()) + len(job.others())
        print(f"{len(job.hangs()):12} {len(job.others()):12}  {name}", flush=True)
    paged, opened = outliers()
    print(f"{0:12} {paged:12}  1024 ranks, 200 steps of 15 s, one in 1,000 twice as long ({opened} suspicions)")
    return wrong + paged


def main(argv: Sequence[str] | None = None) -> int:
    """0: nobody was woken for nothing, and every hang was reported."""
    parser = argparse.ArgumentParser(prog="python -m bench.pauses", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="starts, checkpoints and evaluations")
    arguments = parser.parse_args(argv)
    wrong = report_pauses(arguments.events)
    wrong += report_young(max(1, round(YOUNG_JOBS * arguments.events / EVENTS)))
    missed = report_hangs(arguments.events / EVENTS)
    wrong += report_seen_before()
    print(f"\npages for nothing: {wrong}; hangs not reported: {missed}")
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())
