"""The rule for slow devices, on a view that a simulated job left behind."""

from __future__ import annotations

import pytest

from megatronapp.detector.rules import slow_gpu
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
