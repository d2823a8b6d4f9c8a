"""Status and actions of a decision."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from megatronapp.core.trainingjob import ConditionType, Phase, Reason, Status
from megatronapp.core.trainingjob.status import Condition, Progress
from megatronapp.operator.actions import Create, Delete, MarkNode, RecordEvent, StartJob, StopJob, TripBreaker
from megatronapp.operator.observation import Breaker, Limits, Observation, Refusal
from megatronapp.operator.reconcile import Decision, decide
from megatronapp.operator.render.job import digest
from megatronapp.operator.snapshots import ChildJob, format_time
from tests.unit.operator.samples import NOW, child, observation, pod, report, running, suspicion, training_job


def condition(decision: Decision, kind: ConditionType) -> Condition | None:
    return next((found for found in decision.status.conditions if found.type is kind), None)


def settled(view: Observation, **spec: Any) -> Observation:
    """The same view a moment later, with the status that was decided on."""
    return observation(
        training_job(decide(view).status, **spec),
        children=view.children,
        pods=view.pods,
        report=view.report,
        now=view.now + timedelta(seconds=1),
    )


def test_a_new_job_gets_a_status_then_its_children() -> None:
    decision = decide(observation(service=False))

    assert decision.status.phase is Phase.PENDING
    assert decision.status.attempt == 1
    assert decision.status.nodes.summary == "0/2"
    kinds = [action.body["kind"] for action in decision.actions if isinstance(action, Create)]
    assert kinds == ["NetworkPolicy", "Service", "Job"]


def test_a_job_made_suspended_gets_only_the_job_that_waits() -> None:
    decision = decide(observation(training_job(suspend=True), service=False))

    assert decision.status.phase is Phase.SUSPENDED
    assert [action.body["kind"] for action in decision.actions if isinstance(action, Create)] == ["Job"]


def test_service_and_policy_are_there_before_a_held_job_is_let_run() -> None:
    waiting = observation(training_job(suspend=True), service=False)
    job = next(action.body for action in decide(waiting).actions if isinstance(action, Create))
    held = ChildJob.of({**job, "metadata": {**job["metadata"], "resourceVersion": "2"}})
    assert held is not None
    resumed = training_job(decide(waiting).status, generation=2)

    decision = decide(observation(resumed, children=(held,), service=False))

    policy, service, start = (action for action in decision.actions if not isinstance(action, RecordEvent))
    assert isinstance(policy, Create)
    assert isinstance(service, Create)
    assert (policy.body["kind"], service.body["kind"]) == ("NetworkPolicy", "Service")
    assert start == StartJob("gpt-1")


def test_a_held_job_is_not_let_run_while_the_server_refuses_what_its_pods_need() -> None:
    refusal = Refusal("exceeded quota: services", 1, NOW + timedelta(seconds=60))
    current = digest(observation().plan(1, 2, ()))

    decision = decide(observation(children=(child(suspended=True, held=True, digest=current),), refusal=refusal))

    assert not any(isinstance(action, StartJob | Create) for action in decision.actions)
    assert decision.again_seconds == 60.0


def test_a_job_that_is_suspended_after_a_run_keeps_service_and_policy() -> None:
    stopped = running(training_job(Status(attempt=1), suspend=True), children=(child(stopped="SuspendedByUser"),))

    assert not any(isinstance(action, Delete) for action in decide(stopped).actions)


def test_a_job_that_runs_says_so() -> None:
    decision = decide(running(report=report()))

    assert decision.status.phase is Phase.RUNNING
    assert decision.status.nodes.summary == "2/2"
    assert decision.status.start_time == format_time(NOW)
    assert decision.status.progress is not None
    assert decision.status.progress.summary == "40/200"
    assert decision.status.progress.iteration_millis == 250
    assert decision.status.progress.percent == 20


def test_looking_twice_changes_nothing() -> None:
    view = settled(running(report=report(suspicion())))

    decision = decide(view)

    assert decision.status == view.job.status
    assert decision.actions == ()


def test_pods_without_a_place_are_told_of_with_the_schedulers_words() -> None:
    homeless = pod(1, node="", phase="Pending", ready=False, unschedulable="insufficient nvidia.com/gpu")

    decision = decide(observation(children=(child(),), pods=(pod(0), homeless)))

    ready = condition(decision, ConditionType.PODS_READY)
    assert ready is not None
    assert ready.reason is Reason.UNSCHEDULABLE
    assert "1 of 2 pods: insufficient nvidia.com/gpu" in ready.message


def test_a_hang_names_its_collective_and_its_side_in_the_column() -> None:
    said = (
        "Nothing has moved in step 40. Rank 2 has not entered all_reduce 79 of dp:0-2; waiting for it: 0. Its longest"
    )
    found = dataclasses.replace(suspicion(), kind="hang", cause="host_cpu", ranks=(2,), summary=f"{said} pause is 1 s.")

    decision = decide(running(report=report(found)))

    assert decision.status.findings is not None
    summary = "2 @ node2: host: Rank 2 has not entered all_reduce 79 of dp:0-2"
    assert decision.status.findings.summary == summary


def test_findings_name_ranks_and_node() -> None:
    decision = decide(running(report=report(suspicion())))

    assert decision.status.findings is not None
    assert decision.status.findings.slow_ranks == [2, 3]
    assert decision.status.findings.node == "node2"
    assert decision.status.findings.worst_slowdown == "1.5"
    assert decision.status.findings.summary == "2,3 @ node2"
    degraded = condition(decision, ConditionType.DEGRADED)
    assert degraded is not None
    assert degraded.message == "ranks 2, 3 are slow"


def test_findings_end_with_the_slowness() -> None:
    view = settled(running(report=report(suspicion())))
    well = observation(view.job, children=view.children, pods=view.pods, report=report())

    decision = decide(well)

    assert decision.status.findings is None
    degraded = condition(decision, ConditionType.DEGRADED)
    assert degraded is not None
    assert degraded.status == "False"


def test_without_the_platform_the_status_stays_as_it_was() -> None:
    view = settled(running(report=report(suspicion())))

    decision = decide(observation(view.job, children=view.children, pods=view.pods, report=None))

    assert decision.status == view.job.status


def test_progress_alone_is_not_written_all_the_time() -> None:
    written = Progress(iteration=30, total=200, last_updated=format_time(NOW - timedelta(seconds=5)))
    view = running(training_job(Status(attempt=1, progress=written)), report=report())

    decision = decide(view)

    assert decision.status.progress == written
    assert decision.again_seconds == 10.0
    later = running(view.job, report=view.report, now=NOW + timedelta(seconds=10))
    assert decide(later).status.progress != written


def test_a_move_away_is_on_record_before_it_is_done() -> None:
    view = running(training_job(remediation={"mode": "Taint"}), report=report(suspicion()))

    decision = decide(view)

    assert [node.name for node in decision.status.excluded_nodes] == ["node2"]
    assert decision.status.phase is Phase.RESTARTING
    mark, stop = (action for action in decision.actions if not isinstance(action, RecordEvent))
    assert isinstance(mark, MarkNode)
    assert mark.node == "node2"
    assert stop == StopJob("gpt-1", Reason.REMEDIATION)


def test_only_taint_touches_nodes() -> None:
    request = {"mode": "ExcludeNode"}
    exclude = decide(running(training_job(remediation=request), report=report(suspicion())))
    held = decide(
        running(
            training_job(remediation={"mode": "Taint"}),
            report=report(suspicion()),
            limits=Limits(remediation="ExcludeNode"),
        )
    )

    for decision in (exclude, held):
        assert not any(isinstance(action, MarkNode) for action in decision.actions)
        assert StopJob("gpt-1", Reason.REMEDIATION) in decision.actions


def test_a_move_held_back_trips_the_breaker_once() -> None:
    job = training_job(remediation={"mode": "Taint"})
    view = running(job, report=report(suspicion()), breaker=Breaker(frozenset({"node9"}), 1))
    tripped = running(job, report=report(suspicion()), breaker=Breaker(frozenset({"node9"}), 1, tripped=True))

    assert any(isinstance(action, TripBreaker) for action in decide(view).actions)
    assert not any(isinstance(action, TripBreaker) for action in decide(tripped).actions)
    degraded = condition(decide(tripped), ConditionType.DEGRADED)
    assert degraded is not None
    assert "circuit breaker" in degraded.message


def test_after_success_older_attempts_are_cleared_away() -> None:
    job = training_job(Status(attempt=2))
    pods = (pod(0, 2, phase="Succeeded", ready=False), pod(1, 2, phase="Succeeded", ready=False))

    decision = decide(observation(job, children=(child(1, failed=True), child(2, complete=True)), pods=pods))

    assert decision.status.phase is Phase.SUCCEEDED
    assert decision.status.completion_time == format_time(NOW)
    assert Delete("Job", "gpt-1") in decision.actions


def test_the_deadline_stops_the_pods() -> None:
    status = Status(attempt=1, start_time=format_time(NOW - timedelta(seconds=10)))

    decision = decide(running(training_job(status, activeDeadlineSeconds=5)))

    assert decision.status.phase is Phase.FAILED
    assert StopJob("gpt-1", Reason.DEADLINE_EXCEEDED) in decision.actions


def ended(seconds_ago: int, **spec: Any) -> Observation:
    view = observation(children=(child(complete=True),), now=NOW - timedelta(seconds=seconds_ago))
    return observation(training_job(decide(view).status, **spec), children=view.children)


def test_an_ended_job_lets_go_of_its_children_when_its_time_is_up() -> None:
    waiting, due = ended(59, ttlSecondsAfterFinished=60), ended(60, ttlSecondsAfterFinished=60)

    assert decide(waiting).actions == ()
    assert decide(waiting).again_seconds == 1.0
    network = (Delete("NetworkPolicy", "gpt-ranks"), Delete("Service", "gpt-ranks"))
    assert decide(due).actions == (Delete("Job", "gpt-1"), *network)
    assert decide(due).status.phase is Phase.SUCCEEDED


def test_an_ended_job_without_time_to_live_keeps_them() -> None:
    decision = decide(ended(10**6))

    assert decision.actions == ()
    assert decision.again_seconds is None


def test_what_the_server_refuses_is_told_and_not_tried_at_once() -> None:
    refusal = Refusal("unknown field spec.x", 1, NOW + timedelta(seconds=60))

    decision = decide(observation(refusal=refusal))

    invalid = condition(decision, ConditionType.INVALID_TEMPLATE)
    assert invalid is not None
    assert invalid.status == "True"
    assert "unknown field" in invalid.message
    assert not any(isinstance(action, Create) for action in decision.actions)
    assert decision.again_seconds == 60.0


def test_each_change_is_told_once() -> None:
    first = decide(running())
    told = [action.reason for action in first.actions if isinstance(action, RecordEvent)]

    assert told == [Reason.PODS_READY, Reason.TRAINING]
    assert decide(settled(running())).actions == ()


def test_that_a_job_is_suspended_is_told_unless_it_was_made_so() -> None:
    made_so = decide(observation(training_job(suspend=True)))
    later = decide(
        running(training_job(Status(attempt=1), suspend=True), children=(child(stopped="SuspendedByUser"),), pods=())
    )

    assert [action for action in made_so.actions if isinstance(action, RecordEvent)] == []
    assert Reason.SUSPENDED_BY_USER in [action.reason for action in later.actions if isinstance(action, RecordEvent)]


def test_times_of_conditions_change_with_what_they_say_alone() -> None:
    view = settled(running())

    later = decide(observation(view.job, children=view.children, pods=view.pods, now=NOW + timedelta(hours=1)))

    assert all(found.last_transition_time == format_time(NOW) for found in later.status.conditions)
