"""That nothing is heard of a rank is evidence about that rank alone: it is found if others wait for it, and nobody else
is accused of its slowness."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.detector.engine import Engine
from megatronapp.detector.signals.absence import delayed
from tests.support.detecting import Verdicts, seeds
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

CULPRIT, ONSET, LAST = 5, 40, 80
TICK = 3_000_000_000


def judged(job: Job, *, silent_from: int, silent_every: int = 1) -> Verdicts:
    """The verdicts when the culprit's summaries are lost."""
    verdicts = Verdicts(Engine(job.run, "test/simulated", 1))
    verdicts.feed(0, job.hellos())
    for step in range(1, LAST + 1):
        silent = step >= silent_from and step % silent_every == 0
        verdicts.feed(step, [m for m in job.step(step) if not (silent and m.identity.rank == CULPRIT)])
        verdicts.said += [(step, finding) for finding in verdicts.engine.tick(job.clock_ns + TICK)]
    return verdicts


def job_with(kind: str, size: float, layout: Layout, seed: int, *, on_cpu: bool = False) -> Job:
    noise = CPU if on_cpu else GPU
    return Job(layout, noise, (Fault(kind, (CULPRIT,), ONSET, size),), seed=seed, on_cpu=on_cpu)


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("silent_from", [1, ONSET])
@pytest.mark.parametrize(("kind", "size"), [("compute", 1.4), ("host", 0.2)])
def test_a_slow_rank_that_falls_silent_is_found_and_nobody_else(
    kind: str, size: float, silent_from: int, seed: int
) -> None:
    verdicts = judged(job_with(kind, size, Layout(pp=2, dp=4), seed), silent_from=silent_from)

    assert verdicts.paged_ranks() == {CULPRIT}


@pytest.mark.parametrize("seed", seeds(4))
def test_a_rank_whose_summaries_alone_are_lost_is_not_accused(seed: int) -> None:
    verdicts = judged(job_with("compute", 1.0, Layout(pp=2, dp=4), seed), silent_from=ONSET)

    assert verdicts.opened() == {}


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize(
    ("layout", "on_cpu"),
    [
        pytest.param(Layout(pp=1, dp=8), False, id="dp8-gpu"),
        pytest.param(Layout(pp=1, dp=8), True, id="dp8-cpu", marks=pytest.mark.scale),
        pytest.param(Layout(pp=2, dp=2, tp=2), False, id="pp2 tp2-gpu", marks=pytest.mark.scale),
        pytest.param(Layout(pp=2, dp=2, tp=2), True, id="pp2 tp2-cpu"),
        pytest.param(Layout(pp=4, dp=2), False, id="pp4-gpu", marks=pytest.mark.scale),
        pytest.param(Layout(pp=4, dp=2), True, id="pp4-cpu", marks=pytest.mark.scale),
    ],
)
def test_nor_in_other_layouts_and_nobody_is_woken_by_what_cpu_ranks_wait_for(
    layout: Layout, on_cpu: bool, seed: int
) -> None:
    verdicts = judged(job_with("compute", 1.4, layout, seed, on_cpu=on_cpu), silent_from=ONSET)

    assert verdicts.paged_ranks() == (set() if on_cpu else {CULPRIT})


def test_every_other_summary_is_enough_to_find_it() -> None:
    verdicts = judged(job_with("compute", 1.4, Layout(pp=2, dp=4), 1), silent_from=1, silent_every=2)

    assert verdicts.paged_ranks() == {CULPRIT}


@pytest.mark.scale
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "size"), [("compute", 1.4), ("host", 0.2)])
def test_heard_of_it_is_found(kind: str, size: float, seed: int) -> None:
    verdicts = judged(job_with(kind, size, Layout(pp=2, dp=4), seed), silent_from=LAST + 1)

    assert verdicts.paged_ranks() == {CULPRIT}


def tables(job: Job, *, introduced: int) -> list[object]:
    engine = Engine(job.run, "test/simulated", 1)
    for hello in job.hellos()[:introduced]:
        engine.feed(hello)
    for message in job.step(1)[: introduced - 1]:
        engine.feed(message)
    engine.tick(job.clock_ns + TICK)
    assert engine.newest is not None
    return [np.flatnonzero(delayed(engine.newest)).tolist(), engine.newest.missing, engine.newest.unheard]


def test_the_stages_of_its_replica_may_be_late_for_it() -> None:
    job = Job(Layout(pp=2, dp=4))

    assert tables(job, introduced=8) == [[3, 7], (7,), 0]


def test_where_it_stands_is_not_known_before_its_hello_so_that_all_may_be_late() -> None:
    job = Job(Layout(pp=2, dp=4))

    assert tables(job, introduced=7) == [[0, 1, 2, 3, 4, 5, 6], (6,), 1]
