"""Only steps that were judged and slow count: towards a page, and towards the end of a finding."""

from __future__ import annotations

import math
from typing import Any

import pytest

from megatronapp.core.findings import Kind
from megatronapp.detector.engine import Engine
from megatronapp.detector.judge import SAVES, STEPS, Judge
from megatronapp.v1 import trace_pb2
from tests.support.detecting import Verdicts, detect
from tests.support.simulated import GPU, Fault, Job, Layout, NoiseModel

LONG = 15.0
"""Seconds of compute in a step."""
ONSET, LAST = 41, 60
WIDE = Layout(pp=1, dp=128)


def with_slow_steps(every: int, steps: int) -> Verdicts:
    fault = Fault("compute", (3,), ONSET, 2.0, to_step=ONSET + every * (steps - 1), every=every)
    return detect(Job(Layout(pp=1, dp=8), GPU, (fault,), seed=3, compute_seconds=LONG), LAST)


def test_outliers_are_told_to_nobody_however_long_steps_are() -> None:
    noise = NoiseModel(step=0.01, outliers=0.003, outlier=math.log(2))

    verdicts = detect(Job(WIDE, noise, seed=1, compute_seconds=LONG), LAST)

    assert verdicts.said == []


@pytest.mark.parametrize(("every", "steps"), [(1, 2), (2, 2)], ids=["side by side", "with a usual one between"])
def test_two_slow_steps_page_nobody(every: int, steps: int) -> None:
    assert with_slow_steps(every, steps).paged() == []


def test_three_slow_steps_page() -> None:
    verdicts = with_slow_steps(1, 3)

    assert verdicts.paged_ranks() == {3}
    assert min(step for step, finding in verdicts.said if finding.page) == ONSET + 2


def in_phase(job: Job, step: int, phase: trace_pb2.Phase) -> list[trace_pb2.RankMessage]:
    messages = job.step(step)
    for message in messages:
        message.message.summary.phases.append(phase)
    return messages


@pytest.mark.parametrize("phase", [trace_pb2.PHASE_CHECKPOINT, trace_pb2.PHASE_EVALUATION, trace_pb2.PHASE_PAUSE])
def test_steps_with_something_else_in_them_say_neither_that_it_lasts_nor_that_it_ends(
    phase: trace_pb2.Phase,
) -> None:
    job = Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), ONSET, 2.0),), seed=3, compute_seconds=LONG)
    verdicts = Verdicts(Engine(job.run, "test/simulated", 1))
    verdicts.feed(0, job.hellos())
    for step in range(1, ONSET + 2):
        verdicts.feed(step, job.step(step))

    for step in range(ONSET + 2, ONSET + 22):
        verdicts.feed(step, in_phase(job, step, phase))

    assert verdicts.said == []
    verdicts.feed(ONSET + 22, job.step(ONSET + 22))
    assert verdicts.paged_ranks() == {3}


def test_a_step_with_something_else_in_it_tells_of_its_saves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was suspected before is not said again: it would count as lasting."""
    told, observe = list[set[str]](), Judge.observe

    def noted(self: Judge, *of: Any) -> Any:
        found = observe(self, *of)
        told.append(set(found))
        return found

    monkeypatch.setattr(Judge, "observe", noted)
    job = Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), ONSET, 2.0),), seed=3)
    engine = Engine(job.run, "test/simulated", 1)
    for step in range(1, ONSET + 3):
        for message in (*(job.hellos() if step == 1 else ()), *job.step(step)):
            engine.feed(message)
    assert told[-1] == {STEPS}
    del told[:]

    for step, phase in enumerate((trace_pb2.PHASE_CHECKPOINT, trace_pb2.PHASE_EVALUATION), start=ONSET + 3):
        for message in in_phase(job, step, phase):
            engine.feed(message)

    assert told == [{SAVES}, set()]


def test_steps_without_a_word_of_the_slow_rank_tell_nothing_of_its_device() -> None:
    job = Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), ONSET, 2.0),), seed=3, compute_seconds=LONG)
    verdicts = Verdicts(Engine(job.run, "test/simulated", 1))
    verdicts.feed(0, job.hellos())
    for step in range(1, ONSET + 2):
        verdicts.feed(step, job.step(step))

    for step in range(ONSET + 2, ONSET + 12):
        messages = job.step(step)
        verdicts.feed(step, [m for m in messages if m.identity.rank != 3])
        verdicts.said += [(step, f) for f in verdicts.engine.tick(job.clock_ns + 10**12)]

    assert {(f.kind, f.ranks) for _, f in verdicts.said} == {(Kind.UNKNOWN, (3,))}
    for step in range(ONSET + 12, ONSET + 15):
        verdicts.feed(step, job.step(step))
    assert verdicts.paged_ranks() == {3}
