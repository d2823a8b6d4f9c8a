"""The two Jobs of an attempt, seen and led as one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from megatronapp.core.trainingjob import Reason, Status
from megatronapp.operator import startup
from megatronapp.operator.actions import Create, Delete, StartJob, StopJob
from megatronapp.operator.attempt import as_one
from megatronapp.operator.moves import Finish, Next, choose
from megatronapp.operator.observation import Observation, Refusal
from megatronapp.operator.reconcile import decide
from megatronapp.operator.snapshots import ChildJob, format_time
from megatronapp.operator.startup import Subject
from tests.unit.operator.samples import NOW, child, observation, pod, training_job

APART: dict[str, Any] = {
    "parallelism": {"pipeline": 2},
    "plugins": {"fbd": {"enabled": True, "forwardNodeSelector": {"pool": "old"}}},
}
EARLIER = NOW - timedelta(seconds=60)


def backward(**values: Any) -> ChildJob:
    return child(**{"nodes": 1, "role": "backward", "created": EARLIER, **values})


def forward(**values: Any) -> ChildJob:
    made = child(**{"nodes": 1, "role": "forward", "created": EARLIER, **values})
    return ChildJob(**{**{name: getattr(made, name) for name in made.__slots__}, "name": f"{made.name}-forward"})


def seen(*parts: ChildJob, **values: Any) -> Observation:
    status = Status(attempt=1, observed_generation=1)
    return observation(training_job(status, **APART, **values.pop("spec", {})), children=parts, **values)


def done(view: Observation) -> list[tuple[str, str]]:
    found = []
    for action in decide(view).actions:
        match action:
            case StopJob(name, reason):
                found.append((f"stop {reason}", name))
            case StartJob(name):
                found.append(("start", name))
            case Create(body):
                found.append(("create", body["metadata"]["name"]))
            case Delete(_, name):
                found.append(("delete", name))
    return found


def test_one_that_has_ended_well_before_the_other_was_made_is_half_of_an_attempt() -> None:
    half = seen(backward(complete=True))

    assert half.current is not None
    assert not half.current.complete
    assert done(half)[-1:] == [("create", "gpt-1-forward")]


@pytest.mark.parametrize("ended", [{"stopped": "SuspendedByUser"}, {"failed": True, "failed_at": EARLIER}])
def test_no_other_attempt_begins_before_both_have_been_told_to_end(ended: dict[str, Any]) -> None:
    view = seen(backward(**ended), forward())

    assert [what for what, _ in done(view)] == [f"stop {ended.get('stopped', 'RankFailed')}"]


def test_both_are_made() -> None:
    assert done(seen())[-2:] == [("create", "gpt-1"), ("create", "gpt-1-forward")]


@pytest.mark.parametrize(("there", "missing"), [(backward(), "gpt-1-forward"), (forward(), "gpt-1")])
def test_one_that_is_missing_is_made(there: ChildJob, missing: str) -> None:
    assert done(seen(there)) == [("create", missing)]


def test_none_is_made_that_the_server_refuses() -> None:
    assert done(seen(backward(), refusal=Refusal("quota", 1, NOW + timedelta(seconds=60)))) == []


def test_none_is_made_beside_a_job_of_another_spec() -> None:
    assert done(observation(training_job(suspend=True, **APART), children=(child(suspended=True, held=True),))) == []


def test_both_stop_where_the_job_is_suspended() -> None:
    stopped = done(seen(backward(), forward(), pods=(pod(0),), spec={"suspend": True}))

    assert stopped == [("stop SuspendedByUser", "gpt-1"), ("stop SuspendedByUser", "gpt-1-forward")]


@pytest.mark.parametrize(
    ("first", "stopped"),
    [
        ({"stopped": "Remediation"}, ("stop Remediation", "gpt-1-forward")),
        ({"failing": True}, ("stop RankFailed", "gpt-1-forward")),
        ({"failed": True, "failing": True}, ("stop RankFailed", "gpt-1-forward")),
    ],
)
def test_one_does_not_outlast_the_other(first: dict[str, Any], stopped: tuple[str, str]) -> None:
    assert done(seen(backward(**first), forward(), pods=(pod(1, role="forward"),))) == [stopped]


def test_one_that_ends_well_does_not_stop_the_other() -> None:
    assert done(seen(backward(complete=True), forward(), pods=(pod(1, role="forward"),))) == []


def test_a_failure_of_either_counts_as_one_restart() -> None:
    failed = forward(failing=True, failed=True, failed_at=EARLIER)
    gone = pod(1, role="forward", phase="Failed", exit_code=1, ready=False)

    move = choose(seen(backward(stopped="RankFailed"), failed, pods=(gone,)))

    assert isinstance(move, Next)
    assert (move.reason, move.counts) == (Reason.RANK_FAILED, True)


def test_a_stop_is_no_failure_though_pods_of_one_ended_with_an_error() -> None:
    job = as_one((backward(stopped="SuspendedByUser"), forward(stopped="RankFailed", failed=True)))

    assert job is not None
    assert job.stopped == "SuspendedByUser"


def test_a_job_has_succeeded_when_both_have() -> None:
    ended = (pod(0, role="backward", phase="Succeeded"), pod(1, role="forward", phase="Succeeded"))

    assert not isinstance(choose(seen(backward(complete=True), forward(), pods=ended)), Finish)
    assert isinstance(choose(seen(backward(complete=True), forward(complete=True), pods=ended)), Finish)


def test_both_go_when_the_jobs_time_to_live_is_over() -> None:
    ended = seen(backward(failed=True), forward(stopped="RankFailed"), spec={"failurePolicy": {"maxRestarts": 0}})
    failed = decide(ended).status.model_copy(update={"completion_time": format_time(EARLIER)})

    job = training_job(failed, **APART, ttlSecondsAfterFinished=1)

    assert done(observation(job, children=ended.children))[:2] == [("delete", "gpt-1"), ("delete", "gpt-1-forward")]


def test_who_has_no_pods_is_asked_about() -> None:
    view = seen(backward(), forward(), pods=(pod(0, role="backward"),))

    assert startup.to_ask(view) == Subject("Job", "gpt-1-forward", EARLIER)
