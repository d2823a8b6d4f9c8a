"""Two nodes, of which one was slow in the job's first steps: when it recovers, the other one is not slow."""

from __future__ import annotations

import pytest

from bench.scale.scenarios import Trial
from bench.scale.trials import run
from tests.support.detecting import detect
from tests.support.simulated import Fault, Job, Layout

TWO_NODES = Layout(pp=1, dp=16)
FIVE_NODES = Layout(pp=1, dp=40)
SECOND_NODE = tuple(range(8, 16))


@pytest.mark.parametrize(
    ("until", "ratio"),
    [
        pytest.param(24, 1.03, marks=pytest.mark.scale),
        (24, 1.05),
        pytest.param(50, 1.03, marks=pytest.mark.scale),
        pytest.param(50, 1.05, marks=pytest.mark.scale),
    ],
)
def test_that_others_recover_is_no_slowness_of_those_that_were_never_slow(until: int, ratio: float) -> None:
    burst = Fault("compute", SECOND_NODE, 1, ratio, to_step=until)

    found = detect(Job(TWO_NODES, faults=(burst,), seed=3), until + 130)

    assert not found.opened()


def test_a_rank_of_those_that_were_never_slow_is_found_when_it_becomes_so() -> None:
    burst = Fault("compute", SECOND_NODE, 1, 1.05, to_step=24)
    slow = Fault("compute", (3,), 90, 1.06)

    found = detect(Job(TWO_NODES, faults=(burst, slow), seed=3), 130)

    assert [finding.ranks for _, finding in found.opened().values()] == [(3,)]
    assert found.paged_ranks() == {3}


def test_a_rank_that_is_slow_in_every_fourth_step_alone_is_not_outrun() -> None:
    slow = Fault("compute", (3,), 40, 1.20, every=4)

    assert detect(Job(FIVE_NODES, faults=(slow,), seed=3), 120).paged_ranks() == {3}


def test_a_device_that_is_slow_from_the_first_step_on_was_not_outrun() -> None:
    """Its alarm's onset is estimated late where the effect is small, and its passes have not become longer since."""
    slow = Trial("recall", "first-step", world=64, step_seconds=30, seed=31, steps=0, size=1.03)

    assert [detection.found for detection in run(slow).detections] == [True]
