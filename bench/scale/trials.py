"""Trials: run a simulated job and score it."""

from __future__ import annotations

import time

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
