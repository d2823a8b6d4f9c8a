"""Hangs: one rank stops for good in a step; goal: the right rank within 10 s of the job's longest usual pause.

These jobs speak in heartbeats, one a second from each rank; `python -m bench.pauses` has the pauses that are no hang.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.scale import intervals
from bench.scale.seeds import generator
from tests.support.pausing import STEP, Habits, PausingJob, RandomJob, log_uniform

ALLOWED_SECONDS = 10.0


@dataclass(frozen=True)
class Stop:
    """One job of which a rank stops."""

    world: int
    seed: int


@dataclass(frozen=True)
class Stall:
    """seconds: from the stop to the page, None: none came; usual: the job's longest pause in a step."""

    seconds: float | None
    usual: float
    right_rank: bool

    @property
    def in_time(self) -> bool:
        return self.seconds is not None and self.seconds <= self.usual + ALLOWED_SECONDS


def stop(world: int, seed: int) -> Stall:
    random = generator(seed, "hang", world)
    step = log_uniform(random, 0.1, 60)
    habits = Habits(start=20, first_step=2 * step, step=step, checkpoint=5, evaluation=5, ahead=False, moving=False)
    job = RandomJob(world, seed, habits)
    job.live(2)
    job.reported.steps(max(6, round(8 / step)))
    culprit = int(random.integers(world))
    known = len(job.reported.hangs())
    usual = step * _quiet_share(job.reported)
    seconds = job.reported.hang(STEP, culprit, limit_seconds=5 * step + 60)
    pages = job.reported.hangs()[known:]
    return Stall(seconds, usual, bool(pages) and pages[0][1].ranks == (culprit,))


def _quiet_share(job: PausingJob) -> float:
    """Of a step: the longest time in which nothing moves. With stages that is between messages, or behind the last."""
    if job.layout.pp == 1:
        return job.quiet
    return max(1 / (2 * job.layout.microbatches), 1 - job.quiet)


def line(world: int, stalls: list[Stall]) -> str:
    found = [s for s in stalls if s.seconds is not None]
    seconds = [s.seconds for s in found if s.seconds is not None]
    late = [s.seconds - s.usual for s in found if s.seconds is not None]
    shares = {
        "found": len(found),
        "with the right rank": sum(s.right_rank for s in stalls),
        "in time": sum(s.in_time for s in stalls),
    }
    counted = ", ".join(f"{what} {intervals.share_text(hits, len(stalls))}" for what, hits in shares.items())
    worst = f"; {max(late):.1f} s after the usual pause at worst" if late else ""
    return f"{world:6} ranks: {counted}; seconds to the page {intervals.median_text(seconds)}{worst}"
