"""A pod that was deleted and whose command ends with 0: Kubernetes counts it as completed, and it is not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from megatronapp.core.trainingjob import Phase, Reason
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import PODS
from megatronapp.operator.moves import Finish, Next, NoOp, Stop, choose
from megatronapp.operator.names import ATTEMPT_LABEL, JOB_LABEL, Key
from megatronapp.operator.snapshots import Pod, format_time
from tests.unit.operator.samples import NOW, child, observation, pod, running, training_job

KEY = Key("team", "gpt")
DONE: dict[str, Any] = {"phase": "Succeeded", "exit_code": 0, "ready": False}
CUT: dict[str, Any] = {**DONE, "interrupted": True, "delete_requested": NOW}


def body(finished: datetime | None, asked: datetime | None = NOW, attempt: int = 1, **status: Any) -> dict[str, Any]:
    deletion: dict[str, Any] = {}
    if asked:
        deletion = {"deletionTimestamp": format_time(asked + timedelta(seconds=30)), "deletionGracePeriodSeconds": 30}
    terminated = {"exitCode": 0, "finishedAt": format_time(finished)} if finished else {}
    return {
        "metadata": {
            "name": f"gpt-{attempt}-0-x",
            "namespace": "team",
            "uid": f"uid-{attempt}",
            "resourceVersion": "1",
            "labels": {JOB_LABEL: "gpt", ATTEMPT_LABEL: str(attempt)},
            **deletion,
        },
        "status": {
            "phase": "Succeeded" if finished else "Running",
            "containerStatuses": [{"name": "trainer", "state": {"terminated": terminated} if finished else {}}],
            **status,
        },
    }


@pytest.mark.parametrize(
    ("found", "interrupted"),
    [
        (body(NOW + timedelta(seconds=2)), True),
        (body(NOW), True),
        (body(NOW - timedelta(seconds=1)), False),
        (body(NOW, asked=None), False),
        (body(None), False),
        (body(NOW, phase="Failed"), False),
    ],
)
def test_interrupted_is_who_ended_well_when_told_to(found: dict[str, Any], interrupted: bool) -> None:
    assert Pod.of(found).interrupted is interrupted


def test_a_container_beside_the_trainer_may_end_when_told_to() -> None:
    beside = {"name": "logs", "state": {"terminated": {"finishedAt": format_time(NOW + timedelta(seconds=9))}}}
    found = body(NOW - timedelta(seconds=60))
    found["status"]["containerStatuses"].insert(0, beside)

    assert not Pod.of(found).interrupted


def test_the_others_are_stopped_as_nobody_replaces_it() -> None:
    move = choose(running(pods=(pod(0, **CUT), pod(1))))

    assert isinstance(move, Stop)
    assert move.reason is Reason.PREEMPTED
    assert "gpt-1-0-x was deleted" in move.message


def test_then_another_attempt_follows_and_counts() -> None:
    stopped = child(stopped="Preempted", complete=True)

    move = choose(observation(children=(stopped,), pods=(pod(0, **CUT), pod(1, **CUT))))

    assert isinstance(move, Next)
    assert move.counts


def test_a_job_of_one_pod_that_was_deleted_is_not_complete() -> None:
    job = training_job(nodes=1)

    move = choose(observation(job, children=(child(nodes=1, complete=True),), pods=(pod(0, **CUT),)))

    assert isinstance(move, Next)
    assert (move.reason, move.counts) == (Reason.PREEMPTED, True)


def test_a_suspended_job_whose_pods_end_with_zero_is_not_complete() -> None:
    job = training_job(suspend=True)
    stopped = child(stopped="SuspendedByUser", complete=True)

    for pods in ((pod(0, **CUT), pod(1, **CUT)), ()):
        assert choose(observation(job, children=(stopped,), pods=pods)) == NoOp()


def test_a_job_that_was_done_before_it_was_stopped_is_complete() -> None:
    stopped = child(stopped="SuspendedByUser", complete=True)

    move = choose(observation(children=(stopped,), pods=(pod(0, **DONE), pod(1, **DONE))))

    assert isinstance(move, Finish)
    assert move.phase is Phase.SUCCEEDED


def test_a_pod_that_is_gone_is_remembered_until_the_next_attempt_has_one() -> None:
    cache = InformerCache()
    cache.event(PODS, body(NOW), deleted=True)
    assert [one.interrupted for one in cache.pods.get(KEY)] == [True]

    cache.event(PODS, body(NOW, attempt=2), deleted=True)
    assert [one.attempt for one in cache.pods.get(KEY)] == [2]

    cache.forget(KEY)
    assert cache.pods.get(KEY) == ()


def test_a_pod_that_was_done_is_not_remembered() -> None:
    cache = InformerCache()
    cache.event(PODS, body(NOW - timedelta(seconds=5), asked=None), deleted=False)

    assert cache.event(PODS, body(NOW - timedelta(seconds=5)), deleted=True) == {KEY}
    assert cache.pods.get(KEY) == ()
