"""Trials: run simulated jobs, one after the other or in several processes, and score them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from bench.scale.feeds import Feed, MessageFeed, TableFeed
from bench.scale.job import Job
from bench.scale.scenarios import Trial, plan
from bench.scale.scoring import Outcome, Score


def run(trial: Trial) -> Outcome:
    planned = plan(trial)
    job = Job(planned.spec, trial.seed, f"{trial.name}/{trial.model}")
    score = Score(job, planned.counted_from)
    feed: Feed = MessageFeed(job, planned.delivery) if planned.delivery is not None else TableFeed(job)
    begun = time.thread_time()
    for _ in range(planned.steps):
        step = job.step()
        score.pass_step(step)
        try:
            for unix_ns, finding in feed.step(step):
                score.observe(step.number, unix_ns, finding)
        except Exception as error:  # noqa: BLE001  # the service contains it, too, and goes on with the next message
            score.fail(step.number, error)
    for unix_ns, finding in feed.close():
        score.observe(planned.steps, unix_ns, finding)
    outcome = score.close()
    outcome.engine_seconds = feed.engine_seconds
    outcome.generation_seconds = time.thread_time() - begun - feed.engine_seconds
    return outcome


def run_all(trials: Iterable[Trial], jobs: int) -> Iterator[tuple[Trial, Outcome]]:
    """In the order of the trials. jobs: processes; each should have a core, and numpy one thread."""
    if jobs <= 1:
        for trial in trials:
            yield trial, run(trial)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_named, trials)


def _named(trial: Trial) -> tuple[Trial, Outcome]:
    return trial, run(trial)
