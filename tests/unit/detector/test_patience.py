"""How long a rank must be slow before somebody is woken, where steps are short."""

from __future__ import annotations

import pytest

from tests.support.detecting import Verdicts, detect
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

ONSET, BURST, LAST = 36, 12, 90
SHORT = 0.05
"""Seconds of compute in a step."""


def verdicts(*, on_cpu: bool, to_step: int = LAST) -> Verdicts:
    fault = Fault("compute", (1,), ONSET, 1.5, to_step=to_step)
    noise = CPU if on_cpu else GPU
    return detect(Job(Layout(), noise, (fault,), seed=1, on_cpu=on_cpu, compute_seconds=SHORT), LAST)


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_second_of_slowness_pages_for_a_gpu_alone(on_cpu: bool) -> None:
    found = verdicts(on_cpu=on_cpu, to_step=ONSET + BURST - 1)

    assert found.opened()
    assert found.paged_ranks() == (set() if on_cpu else {1})


def test_what_slows_a_cpu_rank_for_seconds_pages() -> None:
    found = verdicts(on_cpu=True)

    assert found.paged_ranks() == {1}
    first = next(finding for _, finding in found.said if finding.page)
    assert first.updated_unix_ns - first.since_unix_ns >= 2e9


@pytest.mark.parametrize(("kind", "steps"), [("link", 11), pytest.param("host", 5, marks=pytest.mark.scale)])
def test_what_cpu_ranks_wait_for_in_a_burst_pages_nobody(kind: str, steps: int) -> None:
    burst = Fault(kind, (1,), ONSET, 0.3, to_step=ONSET + steps - 1)

    found = detect(Job(Layout(), CPU, (burst,), seed=1, on_cpu=True), LAST)

    assert found.opened()
    assert not found.paged_ranks()


@pytest.mark.parametrize("kind", [pytest.param("link", marks=pytest.mark.scale), "host"])
def test_what_cpu_ranks_wait_for_for_good_pages(kind: str) -> None:
    found = detect(Job(Layout(), CPU, (Fault(kind, (1,), ONSET, 0.3),), seed=1, on_cpu=True), LAST)

    assert found.paged_ranks() == {1}


@pytest.mark.parametrize(("to_step", "paged"), [(ONSET + 14, set()), (LAST, {1})])
def test_a_gpu_that_is_two_percent_slower_pages_only_when_it_stays_so(to_step: int, paged: set[int]) -> None:
    fault = Fault("compute", (1,), ONSET, 1.025, to_step=to_step)

    found = detect(Job(Layout(pp=2, dp=4), GPU, (fault,), seed=6), LAST)

    assert {rank for _, finding in found.opened().values() for rank in finding.ranks} == {1}
    assert found.paged_ranks() == paged
