"""The rule for slow devices, on a view that a simulated job left behind."""

from __future__ import annotations

import dataclasses

import pytest

from megatronapp.core.findings import Cause
from megatronapp.detector.rules import slow_gpu
from megatronapp.v1 import trace_pb2
from tests.support.detecting import detect, seeds
from tests.support.simulated import CPU, GPU, Fault, Job, Layout


def test_a_rank_under_an_alarm_that_is_faster_than_usual_by_now_ends_no_verdict() -> None:
    verdicts = detect(Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), 36, 1.2),), seed=3), 45)
    view = verdicts.engine.judge.view
    assert view is not None
    view.monitors["compute_effect"].effect[3] = -0.01

    assert [suspicion.ranks for suspicion in slow_gpu.detect(view)] == [(3,)]


@pytest.mark.parametrize("late", ["host", "link"])
@pytest.mark.parametrize("seed", seeds(2))
def test_a_cpu_rank_that_idles_between_its_passes_for_another_of_its_replica_is_not_accused(
    late: str, seed: int
) -> None:
    faults = Fault(late, (0,), 36, 0.6), Fault("compute", (3,), 36, 1.25)

    verdicts = detect(Job(Layout(pp=2, dp=1, tp=2), CPU, faults, seed=seed, on_cpu=True), 80)

    assert verdicts.paged_ranks() == {0}


@pytest.mark.parametrize(("slower", "found"), [(1.1, {2}), (1.4, {1, 2})])
@pytest.mark.parametrize("seed", seeds(2))
def test_a_cpu_rank_of_another_replica_than_a_late_one_idles_once_a_step_and_is_slow_for_little_of_that(
    slower: float, found: set[int], seed: int
) -> None:
    faults = Fault("host", (2,), 36, 0.6), Fault("compute", (1,), 36, slower)

    verdicts = detect(Job(Layout(pp=1, dp=2, tp=2, microbatches=1), CPU, faults, seed=seed, on_cpu=True), 80)

    assert verdicts.paged_ranks() == found


HOT = slow_gpu.THERMAL_REASONS


@pytest.mark.parametrize(
    ("reasons", "clock_mhz", "others", "cause"),
    [
        pytest.param(0, 1980, 0, Cause.COMPUTE, id="neither heat nor a neighbour"),
        pytest.param(0, 1980, 1, Cause.INTERFERENCE, id="a neighbour"),
        pytest.param(HOT, 1400, 0, Cause.THERMAL, id="heat alone"),
        pytest.param(HOT, 1650, 1, Cause.INTERFERENCE, id="a neighbour that heats the device by more than explains it"),
        pytest.param(HOT, 990, 1, Cause.THERMAL, id="clocks that explain all of it beside somebody who does little"),
        pytest.param(HOT, 0, 1, Cause.INTERFERENCE, id="clocks that are not known"),
    ],
)
def test_heat_is_the_cause_only_as_far_as_the_clocks_explain_the_effect(
    reasons: int, clock_mhz: int, others: int, cause: Cause
) -> None:
    verdicts = detect(Job(Layout(pp=1, dp=8), GPU, (Fault("compute", (3,), 36, 1.67),), seed=3), 45)
    view = verdicts.engine.judge.view
    assert view is not None
    telemetry = trace_pb2.GpuTelemetry(
        sm_clock_mhz=clock_mhz,
        sm_clock_max_mhz=1980,
        clock_event_reasons=reasons,
        temperature_celsius=86,
        other_processes=others,
    )

    (found,) = slow_gpu.detect(dataclasses.replace(view, telemetry={3: telemetry}))

    assert (found.ranks, found.cause) == ((3,), cause)
