"""Checkpoints: that saving takes time is no fault, a rank that writes ever more slowly is one."""

from __future__ import annotations

import pytest

from megatronapp.core.findings import Cause, Kind
from tests.support.detecting import detect
from tests.support.simulated import CPU, GPU, Fault, Job, Layout

EVERY, ONSET = 5, 61
LAYOUT = Layout(pp=2, dp=4)


@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_saving_time_and_again_is_taken_for_no_slowness(on_cpu: bool) -> None:
    job = Job(LAYOUT, CPU if on_cpu else GPU, seed=1, on_cpu=on_cpu, save_every=EVERY)

    verdicts = detect(job, 120)

    assert [f for _, f in verdicts.said if f.page or f.cause is Cause.CHECKPOINT] == []


def test_a_rank_that_writes_its_part_more_slowly_than_before_is_named_and_costs_the_wait_at_each_save() -> None:
    job = Job(LAYOUT, GPU, (Fault("write", (4,), ONSET, 8.0),), seed=2, save_every=EVERY)

    verdicts = detect(job, ONSET + 6 * EVERY)

    (finding,) = verdicts.open()
    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_HOST, Cause.CHECKPOINT, (4,))
    assert finding.since_step == ONSET
    assert finding.page
    assert finding.effect_ratio == pytest.approx(8, rel=0.3)
    step_seconds = 0.37  # compute, bubble, optimizer
    assert finding.cost_ratio - 1 == pytest.approx(14.0 / EVERY / step_seconds, rel=0.4)


def test_storage_that_is_slow_for_all_blames_no_rank() -> None:
    job = Job(LAYOUT, GPU, (Fault("write", tuple(range(8)), ONSET, 8.0),), seed=3, save_every=EVERY)

    verdicts = detect(job, ONSET + 6 * EVERY)

    (finding,) = verdicts.open()
    assert (finding.kind, finding.cause, finding.ranks) == (Kind.UNKNOWN, Cause.CHECKPOINT, ())
    assert not finding.page


def test_slow_saves_do_not_hide_what_the_steps_say() -> None:
    faults = (Fault("write", (4,), ONSET, 8.0), Fault("compute", (4,), ONSET + 1, 1.2))
    job = Job(LAYOUT, GPU, faults, seed=4, save_every=EVERY)

    verdicts = detect(job, ONSET + 6 * EVERY)

    assert {(f.kind, f.cause, f.ranks) for f in verdicts.paged()} == {
        (Kind.SLOW_GPU, Cause.COMPUTE, (4,)),
        (Kind.SLOW_HOST, Cause.CHECKPOINT, (4,)),
    }


def test_writing_as_fast_as_before_again_ends_it() -> None:
    job = Job(LAYOUT, GPU, (Fault("write", (4,), ONSET, 8.0, to_step=ONSET + 30),), seed=5, save_every=EVERY)

    verdicts = detect(job, ONSET + 30 + 20 * EVERY)

    assert len(verdicts.opened()) == 1
    assert verdicts.open() == []
