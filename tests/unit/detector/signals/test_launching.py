"""GPUs that wait for their hosts: neither is a wavering host a slow device, nor hides it one."""

from __future__ import annotations

import pytest

from megatronapp.core.findings import Cause, Kind, State
from megatronapp.detector.signals import launching
from megatronapp.trainer.agent import summary
from tests.support.detecting import detect, seeds
from tests.support.simulated import HOST_BOUND, Fault, Job, Layout, NoiseModel

ONSET = 40
SOME_STARVE = NoiseModel(starved=3)
"""Of eight passes."""


def test_an_effect_that_unmarked_waiting_may_have_is_as_large_as_what_the_agent_leaves_unmarked() -> None:
    assert launching.BLUR == launching.SOMETIMES == summary.STARVED


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=2, dp=2),
        *(pytest.param(Layout(pp=pp, dp=dp), marks=pytest.mark.scale) for pp, dp in ((1, 2), (2, 1), (1, 8))),
    ],
)
@pytest.mark.parametrize("seed", seeds(2))
def test_wavering_hosts_page_nobody(layout: Layout, seed: int) -> None:
    assert detect(Job(layout, HOST_BOUND, seed=seed), 120).paged() == []


@pytest.mark.parametrize(
    "layout",
    [Layout(pp=1, dp=2), *(pytest.param(Layout(pp=pp, dp=dp), marks=pytest.mark.scale) for pp, dp in ((1, 8), (2, 4)))],
)
def test_a_slow_device_is_found_beside_devices_that_starve(layout: Layout) -> None:
    job = Job(layout, HOST_BOUND, (Fault("compute", (1,), ONSET, 2.5),), seed=3)

    (finding,) = detect(job, ONSET + 10).paged()

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (1,))
    assert finding.since_step is not None
    assert abs(finding.since_step - ONSET) <= 1


def test_a_slow_device_whose_host_is_late_for_some_of_its_passes_is_found() -> None:
    job = Job(Layout(pp=1, dp=8), SOME_STARVE, (Fault("compute", (5,), ONSET, 1.08),), seed=7)

    (finding,) = detect(job, ONSET + 10).paged()

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (5,))


def test_passes_that_wait_a_little_for_their_host_make_no_slow_device() -> None:
    job = Job(Layout(pp=1, dp=8), SOME_STARVE, (Fault("waiting", (5,), ONSET, 1.08),), seed=7)

    assert detect(job, ONSET + 20).paged() == []


def test_a_host_that_stays_late_is_named_in_the_end() -> None:
    job = Job(Layout(pp=1, dp=4), HOST_BOUND, (Fault("launching", (2,), ONSET, 2.0),), seed=4)

    (finding,) = detect(job, ONSET + 60).paged()

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_HOST, Cause.HOST_CPU, (2,))


def test_a_host_of_its_own_need_not_be_much_later_to_be_named() -> None:
    noise = NoiseModel(launching=1.3, launching_slow=0.02)
    job = Job(Layout(pp=1, dp=4), noise, (Fault("launching", (2,), ONSET, 1.2),), seed=8)

    (finding,) = detect(job, ONSET + 60).paged()

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_HOST, Cause.HOST_CPU, (2,))


def test_a_host_that_falls_behind_its_device_is_a_slow_host() -> None:
    noise = NoiseModel(launching=0.6, launching_slow=0.03)
    job = Job(Layout(pp=1, dp=4), noise, (Fault("launching", (2,), ONSET, 2.5),), seed=5)

    (finding,) = detect(job, ONSET + 60).paged()

    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_HOST, Cause.HOST_CPU, (2,))


def test_a_slow_device_is_forgotten_when_it_waits_for_its_host_again() -> None:
    job = Job(Layout(pp=1, dp=2), HOST_BOUND, (Fault("compute", (1,), ONSET, 2.5, to_step=ONSET + 15),), seed=6)

    verdicts = detect(job, ONSET + 40)

    assert all(finding.state is State.RESOLVED for finding in verdicts.paged())


def test_the_optimizer_of_a_device_that_waits_for_its_host_tells_nothing_of_memory() -> None:
    job = Job(Layout(pp=1, dp=2), HOST_BOUND, (Fault("optimizer", (0,), ONSET, 1.2),), seed=7)

    assert detect(job, ONSET + 20).paged() == []
