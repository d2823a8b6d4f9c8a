"""How sure a verdict is: a second signal counts against it only where it can speak."""

from __future__ import annotations

import pytest

from megatronapp.core.findings import Finding
from tests.support.detecting import Verdicts, detect
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

ONSET = 36
SURE = 0.9


def _last_words(verdicts: Verdicts) -> list[Finding]:
    found = verdicts.paged()
    assert found
    return found


@pytest.mark.parametrize(
    ("layout", "ranks", "on_cpu"),
    [
        pytest.param(Layout(pp=2, dp=2), (2, 3), False, id="all replicas of a stage, gpu"),
        pytest.param(Layout(pp=2, dp=2), (2, 3), True, id="all replicas of a stage, cpu", marks=pytest.mark.scale),
        pytest.param(Layout(pp=4, dp=1), (2,), False, id="no replica, gpu", marks=pytest.mark.scale),
        pytest.param(Layout(pp=4, dp=1), (2,), True, id="no replica, cpu"),
        pytest.param(Layout(pp=2, dp=4), (5,), False, id="peers that agree, gpu"),
        pytest.param(Layout(pp=2, dp=4), (5,), True, id="peers that agree, cpu", marks=pytest.mark.scale),
    ],
)
def test_a_clearly_slow_rank_is_sure_whether_or_not_it_has_peers(
    layout: Layout, ranks: tuple[int, ...], on_cpu: bool
) -> None:
    job = Job(layout, CPU if on_cpu else GPU, (Fault("compute", ranks, ONSET, 1.4),), seed=1, on_cpu=on_cpu)

    found = _last_words(detect(job, ONSET + 24))

    assert {rank for finding in found for rank in finding.ranks} == set(ranks)
    assert min(finding.confidence for finding in found) >= SURE


def test_peers_that_are_as_slow_cast_doubt_until_they_are_known_to_be_slow_too() -> None:
    job = Job(Layout(pp=2, dp=2), CPU, (Fault("compute", (2, 3), ONSET, 1.4),), seed=1, on_cpu=True)

    verdicts = detect(job, ONSET + 24)

    first = {opened.ranks: opened.confidence for _, opened in verdicts.opened().values()}
    assert min(first.values()) < SURE


def test_slow_from_the_first_step_on_has_no_past_that_could_deny_it() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (5,), 1, 1.2),), seed=5)

    (finding,) = _last_words(detect(job, 40))

    assert (finding.ranks, finding.confidence >= SURE) == ((5,), True)


def test_memory_alone_slow_is_sure() -> None:
    job = Job(Layout(pp=1, dp=4), GPU, (Fault("optimizer", (2,), ONSET, 1.5),), seed=8)

    (finding,) = _last_words(detect(job, ONSET + 6))

    assert finding.confidence >= SURE
