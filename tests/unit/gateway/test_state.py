"""The reducer: what messages make of jobs, ranks, steps and findings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Kind, State
from megatronapp.core.trace import evaluations
from megatronapp.gateway import state, views
from megatronapp.gateway.models import AttachedDegree, JobState
from megatronapp.gateway.state import JobStore
from megatronapp.v1 import trace_pb2
from tests.integration.gateway.support import (
    RUN,
    SECOND_NS,
    control,
    finding,
    heartbeat,
    hello,
    identity,
    message,
    summary,
)

NOW = 1_790_000_000 * SECOND_NS


GOODBYE = heartbeat(closing=True, phase=trace_pb2.PHASE_PAUSE)
SAVING = trace_pb2.PHASE_CHECKPOINT


def job_store(*messages: trace_pb2.RankMessage) -> JobStore:
    result = JobStore()
    for item in messages:
        result.apply_message(item)
    return result


def said(body, rank: int = 0, *, seconds_ago: float = 0.0, lost: bool = False, **who) -> trace_pb2.RankMessage:
    return message(body, identity(rank, **who), at_ns=NOW - int(seconds_ago * SECOND_NS), lost=lost)


def job_now(result: JobStore, seconds_later: float = 0.0):
    return views.job_view(result.jobs[RUN], result.findings_of(RUN), NOW + int(seconds_later * SECOND_NS))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([said(hello())], JobState.STARTING),
        ([said(hello()), said(heartbeat(phase=trace_pb2.PHASE_START))], JobState.STARTING),
        ([said(hello()), said(heartbeat(phase=trace_pb2.PHASE_PAUSE))], JobState.RUNNING),
        ([said(hello()), said(summary(1))], JobState.RUNNING),
        ([said(hello()), said(summary(1), seconds_ago=60), said(heartbeat())], JobState.STALLED),
        (
            [said(hello()), said(summary(1), seconds_ago=60), said(heartbeat(phase=trace_pb2.PHASE_CHECKPOINT))],
            JobState.RUNNING,
        ),
        ([said(hello()), said(summary(1, seconds=30), seconds_ago=60), said(heartbeat())], JobState.RUNNING),
        ([said(hello()), said(summary(100)), said(GOODBYE)], JobState.FINISHED),
        ([said(hello()), said(summary(100)), said(heartbeat(closing=True))], JobState.FINISHED),
        ([said(hello()), said(summary(100)), said(GOODBYE), said(None, lost=True)], JobState.FINISHED),
        ([said(hello()), said(summary(1)), said(GOODBYE)], JobState.STOPPED),
        ([said(hello(first_step=101)), said(GOODBYE)], JobState.FINISHED),
        ([said(hello()), said(summary(1)), said(heartbeat(closing=True))], JobState.FAILED),
        ([said(hello()), said(heartbeat(closing=True, phase=trace_pb2.PHASE_START))], JobState.FAILED),
        ([said(hello()), said(summary(100)), said(heartbeat(closing=True, phase=SAVING))], JobState.FAILED),
        (
            [said(hello(0), 0), said(hello(1), 1), said(None, 0, lost=True), said(heartbeat(closing=True), 1)],
            JobState.FAILED,
        ),
        ([said(hello()), said(summary(1)), said(None, lost=True)], JobState.LOST),
        ([said(hello()), said(summary(100)), said(None, lost=True)], JobState.FINISHED),
        ([said(hello(), seconds_ago=60)], JobState.LOST),
        ([said(hello(0), 0), said(hello(1), 1), said(heartbeat(closing=True), 0)], JobState.STARTING),
    ],
)
def test_the_state_of_a_job(messages: list[trace_pb2.RankMessage], expected: JobState) -> None:
    assert job_now(job_store(*messages)).state is expected


def attached_as(attached: trace_pb2.Attached):
    greeting = hello()
    greeting.attached = attached
    return greeting


COLLECTING = heartbeat(phase=trace_pb2.PHASE_START)
COLLECTING.frontiers.add(communicator=1, enqueued=2, completed=1)


@pytest.mark.parametrize(
    ("attached", "messages", "expected"),
    [
        (trace_pb2.ATTACHED_UNSPECIFIED, [summary(1)], (None, JobState.RUNNING)),
        (trace_pb2.ATTACHED_SCHEDULES, [COLLECTING], (AttachedDegree.FULL, JobState.STARTING)),
        (trace_pb2.ATTACHED_PROGRAM, [], (AttachedDegree.COLLECTIVES, JobState.STARTING)),
        (trace_pb2.ATTACHED_PROGRAM, [COLLECTING], (AttachedDegree.COLLECTIVES, JobState.RUNNING)),
        (trace_pb2.ATTACHED_PROGRAM, [COLLECTING, summary(1)], (AttachedDegree.STEPS, JobState.RUNNING)),
    ],
)
def test_what_is_seen_of_a_program_is_told_by_its_first_rank_and_its_steps(
    attached: trace_pb2.Attached, messages: list, expected: tuple
) -> None:
    job = job_now(job_store(said(attached_as(attached)), *map(said, messages)))

    assert (job.attached, job.state) == expected


def test_a_lost_job_that_is_heard_again_runs() -> None:
    before = [said(hello()), said(summary(1)), said(None, lost=True)]
    result = job_store(*before, said(summary(2), seconds_ago=-1))

    assert job_now(result).state is JobState.RUNNING


def test_silence_alone_makes_a_job_lost() -> None:
    result = job_store(said(hello()), said(summary(1)))

    assert job_now(result, 1).state is JobState.RUNNING
    assert job_now(result, 60).state is JobState.LOST


def test_a_new_attempt_starts_over_from_its_checkpoint() -> None:
    before = [said(hello()), *(said(summary(step, loss=float(step))) for step in range(1, 11))]
    result = job_store(*before, said(hello(first_step=6), attempt=2, incarnation=8))

    assert list(result.jobs[RUN].steps) == [1, 2, 3, 4, 5]
    assert result.apply_message(said(summary(11))) is None
    result.apply_message(said(summary(6, loss=0.5), attempt=2, incarnation=8))
    assert (job_now(result).attempt, job_now(result).step, job_now(result).loss) == (2, 6, 0.5)


def test_a_rank_that_says_nothing_for_seconds_is_counted_as_silent_while_it_is_connected() -> None:
    result = job_store(said(hello()))
    heard = result.jobs[RUN].ranks[0].heard_unix_ns
    job = result.jobs[RUN]

    counts = [
        (view.ranks_connected, view.ranks_silent)
        for seconds in (2.9, 3.1, 16)
        for view in [views.job_view(job, (), heard + int(seconds * 1e9))]
    ]

    assert counts == [(1, 0), (1, 1), (0, 0)]


def test_only_a_hello_replaces_a_process() -> None:
    result = job_store(said(hello()), said(hello(), incarnation=9))

    assert result.apply_message(said(summary(5), incarnation=7)) is None
    assert result.apply_message(said(None, lost=True, incarnation=7)) is None
    assert result.apply_message(said(summary(5), incarnation=9)) is not None
    assert job_now(result).ranks_connected == 1


def test_a_step_counts_as_long_as_its_slowest_rank() -> None:
    result = job_store(said(hello()), said(summary(1, seconds=0.5), 0), said(summary(1, seconds=0.7), 1))

    assert views.metrics_view(result.jobs[RUN], 0, 10).step_seconds == [0.7]


def test_a_job_tells_its_recipe_and_evaluations_and_a_rank_its_device_and_memory() -> None:
    greeting = hello()
    greeting.placement.device_id, greeting.placement.device_name = "cpu:node-a/0", "Xeon"
    greeting.placement.role = "forward"
    greeting.recipe.settings.add(name="seed", value="7")
    greeting.recipe.versions.add(name="torch", value="2.11")
    step = summary(10)
    step.memory.host_bytes = 5
    beat, silent = heartbeat(), heartbeat()
    beat.evaluations.add(split="valid", loss=2.5, microbatches=4, step=10)
    beat.evaluations.add(split="test", loss=math.nan, microbatches=4, step=10)
    silent.evaluations.add(split="valid", microbatches=4, step=10)

    result = job_store(said(greeting), said(step), said(beat), said(silent, 1))

    detail = views.job_detail(result.jobs[RUN], [], NOW)
    assert detail.recipe is not None
    assert (detail.recipe.settings, detail.recipe.versions) == ({"seed": "7"}, {"torch": "2.11"})
    assert [(e.split, e.step, e.loss) for e in detail.evaluations] == [("test", 10, None), ("valid", 10, 2.5)]
    rank = views.rank_view(result.jobs[RUN].ranks[0], NOW)
    assert (rank.device_id, rank.device_name, rank.role) == ("cpu:node-a/0", "Xeon", "forward")
    assert rank.memory is not None
    assert rank.memory.host_bytes == 5


def test_evaluations_are_bounded_and_those_that_are_done_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "MAX_JOB_EVALUATIONS", 3)
    result = job_store(said(hello()))
    for number in range(1, 6):
        beat = heartbeat()
        beat.evaluations.add(split="valid", loss=1.0, step=number)
        result.apply_message(said(beat))
    job = result.jobs[RUN]
    assert [each.step for each in job.evaluations] == [3, 4, 5]

    result.apply_message(said(hello(first_step=4), attempt=2, incarnation=8))

    assert [each.step for each in job.evaluations] == [3]


def test_an_ordinary_step_is_no_reason_for_standing_still() -> None:
    messages = [said(hello()), said(summary(1), seconds_ago=60), said(heartbeat(phase=trace_pb2.PHASE_STEP))]

    assert job_now(job_store(*messages)).state is JobState.STALLED


def test_a_message_that_names_no_run_is_refused() -> None:
    with pytest.raises(DataError):
        JobStore().apply_message(trace_pb2.RankMessage())


def test_a_wish_may_be_read_before_the_jobs_first_message() -> None:
    result = JobStore()
    result.apply_control(RUN, control(interval=3))
    assert RUN not in result.jobs

    result.apply_message(said(hello()))

    status = views.control_status(result.jobs[RUN], result.controls[RUN])
    assert status.requested is not None
    assert status.requested.interval == 3
    assert (status.in_force, status.ranks) == (None, 0)


def test_records_fill_in_only_what_the_bus_does_not_tell() -> None:
    result = job_store(said(summary(7), 1))
    record = trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, last_step=5, sizes=hello().placement.sizes)
    known = [trace_pb2.RankRecord(identity=identity(rank), placement=hello(rank).placement) for rank in (1, 3)]

    result.apply_record(record, trace_pb2.ListRanksResponse(ranks=known))

    ranks = result.jobs[RUN].ranks
    assert (job_now(result).step, job_now(result).sizes.world) == (7, 4)
    assert ranks[1].placement.gpu_uuid == "GPU-1"
    assert views.connected(ranks[1], NOW)
    assert not views.connected(ranks[3], NOW)


def test_a_message_after_the_records_is_not_taken_for_an_old_one() -> None:
    result = JobStore()
    record = trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1)
    who = trace_pb2.RankRecord(identity=identity(0), connected=True, last_seen_unix_ns=NOW)
    result.apply_record(record, trace_pb2.ListRanksResponse(ranks=[who]))

    for item in (said(hello(), seconds_ago=9, incarnation=4), said(hello(), seconds_ago=5), said(summary(2))):
        assert result.apply_message(item) is not None

    assert job_now(result).step == 2


@pytest.mark.parametrize(("closed", "state"), [(True, JobState.STOPPED), (False, JobState.LOST)])
def test_a_job_of_the_records_has_ended_as_its_ranks_have(closed: bool, state: JobState) -> None:
    result = JobStore()
    schedule = trace_pb2.Schedule(total_steps=400)
    record = trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, last_step=90, schedule=schedule)
    ranks = [trace_pb2.RankRecord(identity=identity(rank), last_seen_unix_ns=NOW, closed=closed) for rank in range(2)]

    result.apply_record(record, trace_pb2.ListRanksResponse(ranks=ranks))

    assert job_now(result).state is state


@pytest.mark.parametrize(
    ("phase", "step", "state"),
    [
        (trace_pb2.PHASE_STEP, 90, JobState.FAILED),
        (trace_pb2.PHASE_CHECKPOINT, 400, JobState.FAILED),
        (trace_pb2.PHASE_PAUSE, 90, JobState.STOPPED),
        (trace_pb2.PHASE_PAUSE, 400, JobState.FINISHED),
    ],
)
def test_a_record_tells_in_which_phase_a_rank_has_ended(phase: trace_pb2.Phase, step: int, state: JobState) -> None:
    result = JobStore()
    schedule = trace_pb2.Schedule(total_steps=400)
    record = trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, last_step=step, schedule=schedule)
    last = trace_pb2.Heartbeat(step=step, phase=phase, closing=True)
    rank = trace_pb2.RankRecord(identity=identity(), last_seen_unix_ns=NOW, closed=True, heartbeat=last)

    result.apply_record(record, trace_pb2.ListRanksResponse(ranks=[rank]))

    assert job_now(result).state is state


def test_evaluations_of_the_records_come_beside_those_of_the_bus() -> None:
    result = JobStore()
    beat = heartbeat()
    beat.evaluations.add(split="valid", loss=2.0, step=20)
    result.apply_message(said(hello()))
    result.apply_message(said(beat))

    kept = [trace_pb2.Evaluation(split="valid", loss=3.0, step=10), trace_pb2.Evaluation(split="valid", step=20)]
    result.apply_record(
        trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, last_step=25),
        trace_pb2.ListRanksResponse(evaluations=kept),
    )

    assert [(each.step, each.loss) for each in result.jobs[RUN].evaluations] == [(10, 3.0), (20, 2.0)]


def test_a_job_of_the_records_that_beats_runs() -> None:
    result = JobStore()
    result.apply_record(
        trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, last_step=90), trace_pb2.ListRanksResponse()
    )

    result.apply_message(said(heartbeat()))

    assert job_now(result).state is JobState.RUNNING


def test_an_older_state_of_a_finding_does_not_come_back() -> None:
    result = JobStore()

    assert result.apply_finding(finding(1, state=State.RESOLVED, changes=9))
    assert not result.apply_finding(finding(1, state=State.OPEN, changes=3))
    assert result.findings["finding-1"].state is State.RESOLVED


def test_findings_are_bounded_and_open_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_FINDINGS", 3)
    result = JobStore()

    result.apply_finding(finding(0))
    for number in range(1, 6):
        result.apply_finding(finding(number, state=State.RESOLVED))

    assert list(result.findings) == ["finding-0", "finding-4", "finding-5"]


def test_jobs_are_bounded_and_the_one_heard_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_JOBS", 2)
    result = JobStore()

    for age, run in ((30, "a"), (99, "b"), (10, "c")):
        result.apply_message(said(hello(), seconds_ago=age, run=run))

    assert set(result.jobs) == {"a", "c"}


def test_what_never_paged_is_no_finding_of_the_job() -> None:
    result = job_store(said(hello()))
    result.apply_finding(finding(1).model_copy(update={"page": False}))

    assert (job_now(result).slow_ranks, job_now(result).open_findings) == ((), 0)


@pytest.mark.parametrize(("resolved_step", "open_findings"), [(None, 1), (90, 0)])
def test_a_job_that_ended_with_a_finding_says_so_also_later(resolved_step: int | None, open_findings: int) -> None:
    result = job_store(said(hello()), said(summary(100)))
    over = finding(1, state=State.RESOLVED).model_copy(update={"resolved_step": resolved_step})
    result.apply_finding(over)
    assert job_now(result).open_findings == 0, "it runs"

    result.apply_message(said(GOODBYE))

    assert (job_now(result).state, job_now(result).open_findings) == (JobState.FINISHED, open_findings)


def test_a_finding_of_an_earlier_attempt_was_not_open_at_the_end() -> None:
    result = job_store(said(hello(), attempt=2), said(summary(100), attempt=2), said(GOODBYE, attempt=2))
    result.apply_finding(finding(1, state=State.RESOLVED).model_copy(update={"resolved_step": None, "attempt": 1}))

    assert job_now(result).open_findings == 0


def test_a_job_started_when_it_was_first_heard_of() -> None:
    result = job_store(said(hello(), seconds_ago=60), said(summary(1), seconds_ago=30))
    assert job_now(result).started_unix_seconds == NOW / 1e9 - 60

    record = trace_pb2.JobRecord(run=RUN, job="team/gpt", attempt=1, first_seen_unix_ns=NOW - 90 * SECOND_NS)
    result.apply_record(record, trace_pb2.ListRanksResponse())

    assert job_now(result).started_unix_seconds == NOW / 1e9 - 90


def test_imbalance_and_resolved_findings_name_nobody_slow() -> None:
    result = job_store(said(hello()))
    result.apply_finding(finding(1).model_copy(update={"kind": Kind.IMBALANCE}))
    result.apply_finding(finding(2, state=State.RESOLVED))

    assert job_now(result).slow_ranks == ()
    assert job_now(result).open_findings == 1


def test_a_rank_says_what_it_has_been_doing_for_how_long() -> None:
    beat = heartbeat(clock_ns=9 * SECOND_NS, activity="all_reduce", activity_since_ns=4 * SECOND_NS)
    rank = views.rank_view(job_store(said(beat, seconds_ago=2)).jobs[RUN].ranks[0], NOW)

    assert (rank.activity, rank.activity_seconds, rank.heartbeat_age_seconds) == ("all_reduce", 5.0, 2.0)


@settings(deadline=None, max_examples=50)
@given(steps=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), max_size=80))
def test_rows_stay_ordered_and_bounded_however_summaries_arrive(steps: list[tuple[int, int]]) -> None:
    result = job_store(said(hello()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "MAX_STEPS", 20)
        for step, rank in steps:
            result.apply_message(said(summary(step, seconds=step / 10), rank))

    rows = list(result.jobs[RUN].steps)
    assert rows == sorted(rows)
    assert len(rows) <= 20
    assert job_now(result).step == max((step for step, _ in steps), default=0)


@settings(deadline=None, max_examples=50)
@given(loss=st.floats(), rate=st.floats())
def test_any_number_a_rank_sends_makes_json(loss: float, rate: float) -> None:
    result = job_store(said(hello()), said(summary(1, loss=loss, tokens_per_second=rate)))

    job = type(job_now(result)).model_validate_json(job_now(result).model_dump_json())

    assert ("loss" in job.non_finite) == (not math.isfinite(loss))
    assert (job.loss is None) == (not math.isfinite(loss))
