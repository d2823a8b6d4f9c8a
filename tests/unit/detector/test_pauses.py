"""Jobs that only pause wake nobody, jobs that hang do, wherever they are: `python -m bench.pauses` in short."""

from __future__ import annotations

import math

import pytest

from megatronapp.detector import progress
from megatronapp.detector.patience import FIRST_STEPS_SECONDS, OTHER_SECONDS, START_SECONDS, STEP_SECONDS, Patience
from megatronapp.v1 import trace_pb2
from tests.support.pausing import CHECKPOINT, EVALUATION, PAUSE, START, STEP, PausingJob, RandomJob
from tests.support.simulated import Layout

BEAT = 1.0
SMALL, WIDE = Layout(pp=1, dp=8), Layout(pp=1, dp=512)


def trained(layout: Layout = SMALL, step_seconds: float = 4.0, *, steps: int = 6) -> PausingJob:
    job = PausingJob(layout, step_seconds)
    job.start(5, 2 * step_seconds)
    job.steps(steps)
    return job


@pytest.mark.parametrize(("world", "seeds"), [(8, 3), (64, 1), pytest.param(8, 8, marks=pytest.mark.scale)])
def test_starts_checkpoints_and_evaluations_wake_nobody(world: int, seeds: int) -> None:
    for seed in range(seeds):
        job = RandomJob(world, seed)

        job.live(10)

        assert (job.reported.hangs(), job.reported.others()) == ([], []), f"seed {seed}: {job.habits}"


@pytest.mark.scale
def test_seconds_of_each_step_without_collectives_wake_nobody_in_a_large_job() -> None:
    job = PausingJob(WIDE, 10.0, quiet=0.8)
    job.start(10, 12)

    job.steps(8)

    assert job.hangs() == []


@pytest.mark.parametrize("old", [False, True], ids=["phase told", "not told"])
def test_a_long_start_and_a_long_first_step_wake_nobody(old: bool) -> None:
    job = PausingJob(Layout(pp=1, dp=32), 2.0, old=old)

    job.start(300, 300)
    job.steps(3)

    assert job.hangs() == []


def test_a_start_that_never_ends_is_told_when_patience_is_over() -> None:
    job = PausingJob(Layout(pp=1, dp=2), 2.0)

    seconds = job.hang(START, 0, limit_seconds=START_SECONDS + 60)

    assert seconds == pytest.approx(START_SECONDS, abs=3 * BEAT)
    assert "since the start" in job.hangs()[0][1].summary


def test_the_first_checkpoint_and_evaluation_may_take_long() -> None:
    job = trained()

    job.checkpoint(600)
    job.steps(2)
    job.evaluation(900)
    job.steps(2)

    assert job.hangs() == []


def test_a_checkpoint_may_take_as_long_as_storage_that_was_asked_again_however_short_they_are() -> None:
    job = trained()
    for _ in range(4):
        job.checkpoint(1.0)
        job.steps(2)

    job.checkpoint(80)
    job.steps(2)

    assert job.hangs() == []


def test_one_rank_that_still_writes_while_others_wait_in_the_next_step_is_no_hang() -> None:
    job = trained()
    for _ in range(5):
        job.checkpoint(60, ahead=True)
        job.steps(3)

    assert job.hangs() == []


def test_waiting_for_a_writer_is_no_pause_of_a_step() -> None:
    job = trained()
    for _ in range(5):
        job.checkpoint(60, ahead=True)
        job.steps(3)

    seconds = job.hang(STEP, 3, limit_seconds=60)

    assert seconds is not None
    assert seconds <= 4 * (4.0 + BEAT)


def test_held_on_purpose_is_never_a_hang() -> None:
    job = trained()

    job.pause(3 * START_SECONDS)
    job.steps(3)

    assert job.hangs() == []


@pytest.mark.parametrize("world", [8, 64])
@pytest.mark.parametrize("step_seconds", [0.2, 1.0, 8.0])
def test_a_hang_in_a_step_is_told_by_the_longest_usual_pause(world: int, step_seconds: float) -> None:
    job = trained(Layout(pp=1, dp=world), step_seconds, steps=max(6, round(8 / step_seconds)))

    seconds = job.hang(STEP, 5, limit_seconds=120)

    assert seconds is not None
    assert STEP_SECONDS <= seconds <= max(STEP_SECONDS, 4 * (step_seconds + BEAT)) + 2 * BEAT
    assert [finding.ranks for _, finding in job.hangs()[:1]] == [(5,)]


@pytest.mark.parametrize(("phase", "place"), [(CHECKPOINT, "the checkpoint"), (EVALUATION, "the evaluation")])
@pytest.mark.parametrize("usual", [2.0, 60.0])
def test_a_hang_in_a_phase_is_told_by_the_longest_of_its_kind(phase: trace_pb2.Phase, place: str, usual: float) -> None:
    job = trained()
    for _ in range(4):
        (job.checkpoint if phase == CHECKPOINT else job.evaluation)(usual)
        job.steps(2)

    seconds = job.hang(phase, 5, limit_seconds=1000)

    assert seconds is not None
    assert seconds <= max(OTHER_SECONDS, 4 * (usual + BEAT)) + 2 * BEAT
    assert f"in {place} after step" in job.hangs()[0][1].summary


def test_steps_before_any_is_known_are_given_what_the_first_one_took() -> None:
    job = PausingJob(Layout(pp=1, dp=8), 4.0)
    job.start(600, 60)

    seconds = job.hang(STEP, 5, limit_seconds=400)

    assert seconds == pytest.approx(4 * 60, abs=4 * 2 * BEAT)


def test_a_hang_that_resolves_itself_is_not_usual_from_then_on() -> None:
    patience = Patience()
    for step in range(200):
        patience.note([STEP], step, 300.0 if step == 150 else 2.0)
        patience.ends(STEP, 8)

    assert patience.of([STEP]) == 8.0


def test_what_comes_again_and_again_is_usual() -> None:
    patience = Patience()
    for step in range(200):
        patience.note([STEP], step, 30.0 if step % 20 == 0 else 2.0)
        patience.ends(STEP, 8)

    assert patience.of([STEP]) == 120.0


def learnt(*seconds: float, ranks: int) -> Patience:
    patience = Patience()
    for each in seconds:
        patience.learn(STEP, each, ranks)
    return patience


def test_once_some_steps_are_known_one_that_takes_twice_as_long_is_waited_for() -> None:
    assert learnt(*[60.0] * 7, ranks=8).of([STEP]) == 4 * 60.0
    assert learnt(*[60.0] * 8, ranks=8).of([STEP]) == 2 * 60.0 + STEP_SECONDS


def test_steps_that_vary_are_waited_for_as_much_longer() -> None:
    assert learnt(*[50.0] * 7, 60.0, ranks=8).of([STEP]) == 2 * 60.0 + 4 * (60.0 - 50.0) + STEP_SECONDS
    assert learnt(*[20.0] * 7, 60.0, ranks=8).of([STEP]) == 4 * 60.0


def test_short_steps_are_waited_for_as_ever() -> None:
    assert learnt(*[2.0] * 8, ranks=8).of([STEP]) == 4 * 2.0


def test_once_outliers_of_ranks_would_have_been_seen_little_more_than_the_longest_pause_is_waited_for() -> None:
    assert learnt(*[60.0] * 10, ranks=64).of([STEP]) == 2 * 60.0 + STEP_SECONDS
    assert learnt(*[60.0] * 10, ranks=1024).of([STEP]) == 60.0 + STEP_SECONDS
    assert learnt(*[60.0] * 80, ranks=64).of([STEP]) == 60.0 + STEP_SECONDS


def test_an_outlier_that_has_been_seen_is_expected_again_however_long_ago_it_was() -> None:
    patience = learnt(10.0, 10.0, 10.0, 20.0, *[10.0] * 400, ranks=64)

    assert patience.of([STEP]) == 20.0 + (20.0 - 10.0) + STEP_SECONDS


def test_a_hang_that_resolved_itself_is_not_expected_again_in_a_large_job_either() -> None:
    assert learnt(*[10.0] * 200, 300.0, *[10.0] * 20, ranks=1024).of([STEP]) == 10.0 + STEP_SECONDS


@pytest.mark.scale
def test_a_large_job_with_long_steps_is_known_to_hang_within_ten_seconds_of_its_longest_pause() -> None:
    job = trained(WIDE, 20.0, steps=10)

    seconds = job.hang(STEP, 5, limit_seconds=120)

    assert seconds is not None
    assert seconds <= 20.0 * job.quiet + 10.0
    finding = job.hangs()[0][1]
    assert finding.ranks == (5,)
    assert "Its longest usual pause is 18." in finding.summary


def test_checkpoints_with_hardly_a_step_between_are_learnt_one_by_one() -> None:
    job = trained(step_seconds=0.1, steps=50)
    for _ in range(4):
        job.checkpoint(40)
        job.evaluation(60)
        job.steps(1)

    seconds = job.hang(CHECKPOINT, 5, limit_seconds=400)

    assert seconds == pytest.approx(4 * 40, abs=4 * 2 * BEAT)


def test_of_several_phases_the_most_patient_holds() -> None:
    patience = Patience()
    for step in range(6):
        patience.note([STEP], step, 60.0)
        patience.note([STEP, CHECKPOINT], step, 30.0)
        patience.ends(CHECKPOINT, 8)
        patience.ends(STEP, 8)

    assert patience.of([STEP]) == 240.0
    assert patience.of([CHECKPOINT]) == 120.0
    assert patience.of([STEP, CHECKPOINT]) == 240.0
    assert patience.of([STEP, EVALUATION]) == START_SECONDS
    assert patience.of([STEP, CHECKPOINT, PAUSE]) == math.inf


def test_a_first_step_of_a_moment_leaves_time_to_those_that_choose_kernels() -> None:
    patience = Patience()

    patience.note([START], 1, 0.2)

    assert patience.of([STEP]) == FIRST_STEPS_SECONDS


def test_what_a_lost_rank_said_last_explains_nothing() -> None:
    job = trained()
    job.checkpoint(2.0)
    job.leave_behind(5, CHECKPOINT)
    job.steps(1)
    job.lose(5)

    seconds = job.hang(STEP, 5, limit_seconds=60)

    assert seconds is not None
    assert [finding.ranks for _, finding in job.hangs()[:1]] == [(5,)]


def test_ranks_that_end_after_one_has_died_are_a_failed_attempt_and_no_hang() -> None:
    job = trained()
    job.wait_for(5, CHECKPOINT, 20)
    job.lose(5)
    for rank in (0, 1, 2, 3, 4, 6, 7):
        job._run(1.5)
        job.lose(rank)
    job._run(20)

    assert job.found == []


def test_one_that_dies_while_the_others_stand_is_named_within_ten_seconds() -> None:
    job = trained()
    job.wait_for(5, CHECKPOINT, 20)
    job.lose(5)
    died = job.now
    job._run(10)

    ((at, finding),) = job.hangs()[:1]
    assert (finding.ranks, at - died <= 10) == ((5,), True)


def test_a_stream_that_breaks_off_again_and_again_puts_off_nothing() -> None:
    job = trained()
    job.wait_for(5, CHECKPOINT, 20)
    job.lose(5)
    for _ in range(5):
        job.lose(3)
        job._run(1.0)
        job._gone.discard(3)
        job._run(1.5)

    assert [finding.ranks for _, finding in job.hangs()[:1]] == [(5,)]


def test_what_a_living_rank_is_in_does() -> None:
    job = trained()
    job.leave_behind(5, CHECKPOINT)

    assert job.hang(STEP, 3, limit_seconds=60) is None


def test_who_is_to_blame_is_not_looked_for_at_each_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    blame = progress.blame
    monkeypatch.setattr(progress, "blame", lambda *args: looks.append(1) or blame(*args))
    job = trained(Layout(pp=1, dp=64))
    job.hang(STEP, 5, limit_seconds=60)

    job._run(20)

    assert len(looks) <= 22
