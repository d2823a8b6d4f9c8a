"""An attempt that does not start: whose events are asked for when, what is told, and when the job has failed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from megatronapp.core.trainingjob import ConditionType, Phase, Reason, Status, TrainingJob
from megatronapp.core.trainingjob.status import Condition
from megatronapp.operator import startup
from megatronapp.operator.actions import RecordEvent, StopJob
from megatronapp.operator.observation import Explanation, Hindrance, Observation, Refusal
from megatronapp.operator.reconcile import Decision, decide
from megatronapp.operator.snapshots import Pod, format_time
from megatronapp.operator.startup import Subject
from tests.unit.operator.samples import NOW, child, observation, pod, training_job

MISSING = {"phase": "Pending", "ready": False}
PULL = {**MISSING, "waiting_reason": "ImagePullBackOff", "waiting_message": "not found"}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def pulling(job: TrainingJob | None = None, now: datetime = NOW) -> Observation:
    return observation(job, children=(child(),), pods=(pod(0, **PULL), pod(1)), now=now)


def podless(seconds: float = 60, **values: Any) -> Observation:
    return observation(children=(child(created=ago(seconds)),), **values)


def pods_ready(decision: Decision) -> Condition:
    return next(c for c in decision.status.conditions if c.type is ConditionType.PODS_READY)


def event(
    seconds_ago: float, reason: str, message: str = "", version: int = 1, kind: str = "Warning"
) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": str(version)},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": format_time(ago(seconds_ago)),
    }


def test_a_missing_image_is_told_with_the_pods_reason_and_words_and_as_an_event() -> None:
    decision = decide(pulling())

    told = pods_ready(decision)
    assert (told.status, told.reason) == ("False", "ImagePullBackOff")
    assert told.message.startswith("gpt-1-0-x on node node1: not found (the job has failed if it is so until ")
    assert [a.warning for a in decision.actions if isinstance(a, RecordEvent) and a.reason == told.reason] == [True]
    assert decision.status.startup_failing_since == format_time(NOW)
    assert decision.again_seconds == 1800.0


def test_the_same_told_again_is_no_news() -> None:
    first = decide(pulling())

    second = decide(pulling(training_job(first.status), NOW + timedelta(seconds=90)))

    assert second.status == first.status
    assert not second.actions


def test_a_job_that_can_not_start_has_failed_in_the_end() -> None:
    first = decide(pulling())

    last = decide(pulling(training_job(first.status), NOW + timedelta(seconds=1800)))

    failed = next(c for c in last.status.conditions if c.type is ConditionType.FAILED)
    assert (last.status.phase, failed.reason) == (Phase.FAILED, Reason.STARTUP_TIMEOUT)
    assert failed.message == "not started for 1800 s: ImagePullBackOff: gpt-1-0-x on node node1: not found"
    assert any(isinstance(action, StopJob) for action in last.actions)


def test_a_job_may_wait_longer_or_for_ever() -> None:
    for seconds in (3600, 0):
        job = training_job(
            Status(attempt=1, startup_failing_since=format_time(ago(1900))),
            failurePolicy={"startupTimeoutSeconds": seconds},
        )

        assert decide(pulling(job)).status.phase is not Phase.FAILED


def test_an_image_that_comes_in_the_end_ends_the_count() -> None:
    before = training_job(Status(attempt=1, startup_failing_since=format_time(ago(1000))))

    decision = decide(observation(before, children=(child(),), pods=(pod(0), pod(1))))

    assert decision.status.startup_failing_since is None
    assert pods_ready(decision).status == "True"


def test_an_attempt_without_pods_is_asked_about_after_a_while_then_ever_more_seldom() -> None:
    assert startup.to_ask(podless(9)) is None
    assert decide(podless(9)).again_seconds == 1.0
    subject = startup.to_ask(podless(10))
    assert subject == Subject("Job", "gpt-1", ago(10))

    explained = startup.explanation(subject, [], NOW)
    assert explained.until == NOW + timedelta(seconds=10)
    assert startup.to_ask(podless(10, explanation=explained)) is None
    assert startup.explanation(Subject("Job", "gpt-1", ago(4000)), [], NOW).until == NOW + timedelta(seconds=300)


def test_an_attempt_that_lacks_some_of_its_pods_is_asked_about_too() -> None:
    view = observation(children=(child(created=ago(60)),), pods=(pod(0),))

    assert startup.to_ask(view) == Subject("Job", "gpt-1", ago(60))


def test_a_pod_that_is_placed_and_not_started_is_asked_about() -> None:
    placed = pod(0, **MISSING, placed_at=ago(30))
    waiting = pod(1, **MISSING, node="", unschedulable="no nodes")

    view = observation(children=(child(),), pods=(placed, waiting))

    assert startup.to_ask(view) == Subject("Pod", placed.name, ago(30))


@pytest.mark.parametrize("state", [{"stopped": "Remediation"}, {"suspended": True}, {"failing": True}])
def test_an_attempt_that_shall_not_start_is_not_asked_about(state: dict[str, Any]) -> None:
    view = observation(children=(child(created=ago(60), **state),))

    assert startup.to_ask(view) is None


def explained(*events: dict[str, Any]) -> Explanation:
    return startup.explanation(Subject("Job", "gpt-1", ago(60)), events, NOW)


def test_a_missing_service_account_is_told_in_kubernetes_words() -> None:
    says = 'pods "gpt-1-0-" is forbidden: error looking up service account team/robot: serviceaccount "robot" not found'

    told = pods_ready(decide(podless(explanation=explained(event(50, "FailedCreate", says)))))

    assert told.reason == "FailedCreate"
    assert told.message.startswith(f"job gpt-1: {says} (the job has failed if")


def test_a_quota_is_told_but_waited_for_as_long_as_it_takes() -> None:
    quota = explained(event(50, "FailedCreate", "exceeded quota: gpus, requested: 8"))
    since = Status(attempt=1, startup_failing_since=format_time(ago(99_999)))

    decision = decide(observation(training_job(since), children=(child(created=ago(60)),), explanation=quota))

    assert "exceeded quota" in pods_ready(decision).message
    assert "has failed" not in pods_ready(decision).message
    assert decision.status.phase is not Phase.FAILED


def test_the_event_written_last_decides() -> None:
    failed, went_on = event(50, "FailedMount", version=1), event(50, "Pulling", version=2, kind="Normal")

    assert explained(failed, went_on).hindrance is None
    assert explained(went_on, {**failed, "metadata": {"resourceVersion": "3"}}).hindrance is not None


def test_events_of_an_earlier_job_of_this_name_do_not_count() -> None:
    assert explained(event(61, "FailedCreate", "of before")).hindrance is None


def test_what_was_told_of_another_object_does_not_count() -> None:
    other = Explanation(Subject("Job", "gpt-0", NOW), Hindrance(Reason.FAILED_CREATE, "old"), NOW)

    assert startup.hindrance(podless(explanation=other)) is None


def test_advice_names_no_job_that_is_not_there() -> None:
    refused = decide(observation(refusal=Refusal("exceeded", 1, ago(-60))))

    assert "InvalidTemplate" in pods_ready(refused).message
    assert "kubectl describe job" not in pods_ready(refused).message
    assert "kubectl describe job" not in pods_ready(decide(observation())).message
    assert "kubectl describe job gpt-1 tells why" in pods_ready(decide(podless())).message


def waiting(reason: str, message: str) -> Pod:
    state = {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}
    return Pod.of({"metadata": {"name": "x"}, "status": state})


def test_an_image_that_is_pulled_again_and_again_is_told_the_same() -> None:
    trying = waiting("ErrImagePull", "failed to resolve reference: not found")
    backing_off = waiting(
        "ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: failed to resolve reference: not found'
    )

    assert (trying.waiting_reason, trying.waiting_message) == ("ImagePullBackOff", backing_off.waiting_message)
    assert backing_off.waiting_reason == "ImagePullBackOff"


def test_a_container_that_is_being_made_says_nothing() -> None:
    assert waiting("ContainerCreating", "").waiting_reason == ""
