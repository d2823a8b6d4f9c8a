"""Where TrainingJobs stand, as the operator says, beside what their ranks say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.trainingjob import Phase
from megatronapp.gateway import state, views
from megatronapp.gateway.models import Job, JobState
from megatronapp.gateway.phases import MAX_AT_ONCE, decode_phases
from megatronapp.gateway.state import Change, JobStore, ReportedPhase
from megatronapp.v1 import trace_pb2
from tests.integration.gateway.support import RUN, SECOND_NS, finding, heartbeat, hello, identity, message, summary

NOW = 1_790_000_000 * SECOND_NS
NAME = "team/gpt"
GOODBYE = heartbeat(closing=True, phase=trace_pb2.PHASE_PAUSE)


def reported(phase: Phase, reason: str = "Reason", message: str = "why", seconds_ago: int = 60) -> ReportedPhase:
    return ReportedPhase(phase, NOW - seconds_ago * SECOND_NS, reason, message)


def store(*bodies: Any, seconds_ago: int = 0) -> JobStore:
    found = JobStore()
    for each in bodies:
        found.apply_message(message(each, identity(0), at_ns=NOW - seconds_ago * SECOND_NS))
    return found


def shown(jobs: JobStore) -> Job:
    return views.job_view(jobs.jobs[RUN], (), NOW)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PENDING, JobState.PENDING),
        (Phase.STARTING, JobState.STARTING),
        (Phase.RUNNING, JobState.STARTING),
        (Phase.RESTARTING, JobState.STARTING),
        (Phase.SUSPENDED, JobState.SUSPENDED),
        (Phase.SUCCEEDED, JobState.FINISHED),
        (Phase.FAILED, JobState.FAILED),
    ],
)
def test_a_job_that_nobody_has_heard_of_is_shown_as_the_operator_says(phase: Phase, expected: JobState) -> None:
    jobs = JobStore()

    assert jobs.apply_phase(RUN, NAME, reported(phase)) == Change(RUN)

    job = shown(jobs)
    assert (job.job, job.namespace, job.name, job.state) == (NAME, "team", "gpt", expected)
    assert (job.state_reason, job.state_message) == ("Reason", "why")
    assert job.started_unix_seconds == job.updated_unix_seconds == NOW / 1e9 - 60
    assert (job.ranks_connected, job.eta_seconds, job.step) == (0, None, 0)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PENDING, JobState.PENDING),
        (Phase.SUSPENDED, JobState.SUSPENDED),
        (Phase.FAILED, JobState.FAILED),
        (Phase.RUNNING, JobState.STOPPED),
        (Phase.SUCCEEDED, JobState.STOPPED),
        (None, JobState.STOPPED),
    ],
)
def test_of_a_job_whose_ranks_have_left_the_operator_says_what_they_can_not(
    phase: Phase | None, expected: JobState
) -> None:
    jobs = store(hello(), summary(5), GOODBYE, seconds_ago=30)

    jobs.apply_phase(RUN, NAME, reported(phase) if phase else None)

    assert shown(jobs).state is expected
    assert shown(jobs).step == 5


@pytest.mark.parametrize("phase", Phase)
def test_ranks_that_are_connected_know_better(phase: Phase) -> None:
    jobs = store(hello(), summary(5))

    jobs.apply_phase(RUN, NAME, reported(phase))

    assert shown(jobs).state is JobState.RUNNING


def test_a_resumed_job_goes_back_to_running() -> None:
    jobs = store(hello(), summary(5), GOODBYE, seconds_ago=30)
    jobs.apply_phase(RUN, NAME, reported(Phase.SUSPENDED))
    assert shown(jobs).state is JobState.SUSPENDED

    jobs.apply_phase(RUN, NAME, reported(Phase.RUNNING, "", ""))
    for body in (hello(first_step=6), summary(6)):
        jobs.apply_message(message(body, identity(0, attempt=2), at_ns=NOW))

    assert shown(jobs).state is JobState.RUNNING
    assert shown(jobs).state_reason == ""


def test_the_start_of_a_job_is_when_its_ranks_were_heard_not_when_it_was_made() -> None:
    jobs = JobStore()
    jobs.apply_phase(RUN, NAME, reported(Phase.PENDING, seconds_ago=7200))

    jobs.apply_message(message(hello(), identity(0), at_ns=NOW))

    assert shown(jobs).started_unix_seconds == NOW / 1e9


def test_what_is_told_twice_is_no_news() -> None:
    jobs = JobStore()

    assert jobs.apply_phase(RUN, NAME, reported(Phase.PENDING)) is not None
    assert jobs.apply_phase(RUN, NAME, reported(Phase.PENDING)) is None


def test_a_job_that_is_deleted_before_it_was_heard_of_is_gone_and_one_that_was_heard_stays() -> None:
    unheard, heard = JobStore(), store(hello(), summary(5), GOODBYE)
    for jobs in (unheard, heard):
        jobs.apply_phase(RUN, NAME, reported(Phase.SUSPENDED))
        jobs.apply_phase(RUN, NAME, None)

    assert RUN not in unheard.jobs
    assert shown(heard).state is JobState.STOPPED
    assert unheard.apply_phase("never-known", NAME, None) is None


def test_nothing_is_said_of_another_jobs_run() -> None:
    jobs = store(hello(), summary(5), GOODBYE)

    assert jobs.apply_phase(RUN, "evil/job", reported(Phase.FAILED)) is None

    assert (shown(jobs).job, shown(jobs).state) == (NAME, JobState.STOPPED)


def test_jobs_that_wait_displace_none_that_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_JOBS", 1)
    jobs = store(hello())
    jobs.apply_finding(finding(1))

    assert jobs.apply_phase("another", "team/another", reported(Phase.PENDING)) is None

    assert list(jobs.jobs) == [RUN]


GOOD: dict[str, Any] = {"run": RUN, "job": NAME, "phase": "Pending"}


def test_a_message_of_the_bus_is_read_with_its_defaults() -> None:
    (found,) = decode_phases(json.dumps({"jobs": [GOOD]}).encode())

    assert found.reported == ReportedPhase(Phase.PENDING, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b'{"jobs": [{}]}',
        b"\xff",
        b"[" * 10_000,
        *(
            json.dumps({"jobs": [GOOD | wrong]}).encode()
            for wrong in (
                {"phase": "Nonsense"},
                {"run": "../etc"},
                {"run": ""},
                {"job": "no-namespace"},
                {"job": "a/b/../c"},
                {"reason": "x" * 65},
                {"message": "x" * 1025},
                {"since_unix_seconds": -1},
                {"since_unix_seconds": 1e300},
                {"since_unix_seconds": "NaN"},
                {"more": 1},
            )
        ),
        json.dumps({"jobs": [GOOD] * (MAX_AT_ONCE + 1)}).encode(),
        b'{"jobs": [{"run": "r", "job": "a/b", "phase": "Pending", "message": "\\ud800"}]}',
    ],
)
def test_what_is_no_message_of_phases_is_refused(value: bytes) -> None:
    with pytest.raises(DataError):
        decode_phases(value)
