"""A finding belongs to its devices: it goes on in the attempts in which they take part."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.core.findings import Finding, State
from megatronapp.detector.engine import Engines
from megatronapp.v1 import trace_pb2
from tests.support.detecting import seeds
from tests.support.simulated import GPU, Fault, Job, Layout

ONSET, STEPS = 30, 40
SLOW = 1
"""The rank that is slow in the first attempt."""


def attempt(number: int, *faults: Fault, seed: int = 6, world: Layout | None = None) -> Job:
    return Job(world or Layout(), GPU, faults, seed=seed + number, attempt=number)


def play(
    engines: Engines, job: Job, first: int, last: int, devices: dict[int, str] | None = None
) -> list[tuple[int, Finding]]:
    """What is said in each step. devices: of ranks that have another one than usual."""
    said = [(0, finding) for hello in job.hellos() for finding in engines.feed(_on(hello, devices or {}))]
    for step in range(first, last + 1):
        said += [(step, finding) for message in job.step(step) for finding in engines.feed(message)]
    return said


def _on(hello: trace_pb2.RankMessage, devices: dict[int, str]) -> trace_pb2.RankMessage:
    place = hello.message.hello.placement
    place.gpu_uuid = devices.get(hello.identity.rank, place.gpu_uuid)
    return hello


def found_in_first(engines: Engines, size: float = 1.3) -> Finding:
    play(engines, attempt(1, Fault("compute", (SLOW,), ONSET, size)), 1, STEPS)
    (found,) = engines.running["run-1"].ledger.open
    assert found.page
    return found


def opened(said: list[tuple[int, Finding]]) -> set[str]:
    return {finding.id for _, finding in said if finding.state is State.OPEN}


def test_it_goes_on_with_its_device_and_is_not_told_as_new() -> None:
    engines = Engines()
    found = found_in_first(engines)

    said = play(engines, attempt(2, Fault("compute", (SLOW,), 1, 1.3)), 20, 80)

    (now,) = engines.running["run-1"].ledger.open
    assert opened(said) == {found.id}
    assert all(finding.state is State.OPEN for _, finding in said)
    assert (now.attempt, now.opened_attempt, now.ranks) == (2, 1, (SLOW,))
    assert (now.since_step, now.opened_unix_ns) == (found.since_step, found.opened_unix_ns)


def test_it_follows_its_device_to_another_rank() -> None:
    engines = Engines()
    found = found_in_first(engines)

    said = play(engines, attempt(2, Fault("compute", (2,), 1, 1.3)), 20, 80, {SLOW: "GPU-2", 2: "GPU-1"})

    (now,) = engines.running["run-1"].ledger.open
    assert (now.id, now.ranks, now.gpu_uuid, now.devices) == (found.id, (2,), "GPU-1", ("GPU-1",))
    assert opened(said) == {found.id}


def test_it_ends_with_the_old_attempt_when_its_device_takes_no_part() -> None:
    engines = Engines()
    found = found_in_first(engines)

    said = play(engines, attempt(2), 20, 30, {SLOW: "GPU-new"})

    assert [(finding.id, finding.state) for _, finding in said] == [(found.id, State.RESOLVED)]
    assert said[0][1].open_at_end


def test_it_is_resolved_when_the_new_attempt_shows_that_the_device_is_healthy() -> None:
    engines = Engines()
    found = found_in_first(engines)

    said = play(engines, attempt(2), 20, 90)

    last = [finding for _, finding in said][-1]
    assert (last.id, last.state, last.open_at_end) == (found.id, State.RESOLVED, False)
    assert engines.running["run-1"].ledger.open == []


@pytest.mark.parametrize("seed", seeds(4))
def test_one_that_is_smaller_than_what_a_start_allows_is_still_not_lost(seed: int) -> None:
    """+4 % is within what healthy devices may differ by from the first step on."""
    engines, layout = Engines(), Layout(pp=2, dp=4)
    play(engines, attempt(1, Fault("compute", (SLOW,), ONSET, 1.04), seed=seed, world=layout), 1, STEPS + 40)
    (found,) = engines.running["run-1"].ledger.open

    play(engines, attempt(2, Fault("compute", (SLOW,), 1, 1.04), seed=seed, world=layout), 1, 120)

    assert [finding.id for finding in engines.running["run-1"].ledger.open] == [found.id]


def test_it_is_open_between_the_attempts_and_ends_with_a_job_that_does_not_come_back() -> None:
    engines = Engines()
    found = found_in_first(engines)
    engines.feed(attempt(2).hellos()[0])

    between = engines.running["run-1"].ledger.open
    ended = engines.forget("run-1", 10**19 // 4)

    assert [finding.id for finding in between] == [found.id]
    assert [(finding.id, finding.open_at_end) for finding in ended] == [(found.id, True)]


def test_what_was_told_before_this_process_began_goes_on_too() -> None:
    found = found_in_first(Engines())
    engines = Engines(told_before=lambda _run: [found])

    said = play(engines, attempt(2, Fault("compute", (SLOW,), 1, 1.3)), 20, 80)

    assert opened(said) == {found.id}


def test_it_goes_on_where_the_job_goes_back_to_an_earlier_step_and_is_over_when_its_steps_show_it() -> None:
    engines = Engines()
    found = found_in_first(engines)
    slow, well = attempt(1, Fault("compute", (SLOW,), 1, 1.3)), attempt(1)
    slow.sequence = well.sequence = np.full(slow.layout.world, STEPS)

    still = play(engines, slow, 20, 60)
    over = play(engines, well, 20, 100)

    assert opened(still) == {found.id}
    assert all(finding.state is State.OPEN for _, finding in still)
    assert opened(over) <= {found.id}
    assert [finding.id for _, finding in over if finding.state is State.RESOLVED] == [found.id]


@pytest.mark.parametrize("seed", seeds(4))
def test_a_healthy_job_that_goes_back_again_and_again_is_told_nothing_and_judged(seed: int) -> None:
    engines, job = Engines(), attempt(1, seed=seed)

    said = play(engines, job, 1, 60)
    for back_to in (30, 45, 20):
        said += [(s, f) for s in range(back_to, 91) for message in job.step(s) for f in engines.feed(message)]

    assert said == []
    assert engines.running["run-1"].assembler.late == 0
    assert engines.running["run-1"].judge.view is not None
