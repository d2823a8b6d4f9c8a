"""What is done next with a job, case by case."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from megatronapp.core.trainingjob import Phase, Reason, Status
from megatronapp.core.trainingjob.status import ExcludedNode, NodesStatus
from megatronapp.operator.moves import EnsureJob, Finish, Next, NoOp, Start, Stop, Trip, choose
from megatronapp.operator.observation import Breaker, Observation
from megatronapp.operator.render.job import digest
from megatronapp.operator.snapshots import Node, format_time
from tests.unit.operator.samples import NOW, child, observation, pod, report, running, suspicion, training_job


def current_digest(view: Observation, excluded: tuple[ExcludedNode, ...] = ()) -> str:
    return digest(view.plan(view.attempt, view.wanted_nodes, excluded))


def test_a_new_job_gets_its_first_attempt() -> None:
    assert choose(observation()) == EnsureJob()


def test_a_suspended_new_job_gets_a_job_that_waits() -> None:
    assert choose(observation(training_job(suspend=True))) == EnsureJob()
    assert choose(observation(training_job(suspend=True), children=(child(suspended=True),))) == NoOp()


def test_a_queued_job_is_not_made_while_the_user_holds_it() -> None:
    assert choose(observation(training_job(suspend=True, scheduling={"queue": "a"}))) == NoOp()


def test_a_job_that_runs_is_left_alone() -> None:
    assert choose(running()) == NoOp()


def test_resuming_a_job_that_never_ran_starts_it() -> None:
    view = observation()
    held = child(suspended=True, digest=current_digest(view))

    assert choose(observation(children=(held,))) == Start()


def test_resuming_a_job_that_was_changed_meanwhile_makes_another_attempt() -> None:
    move = choose(observation(children=(child(suspended=True, digest="old"),)))

    assert isinstance(move, Next)
    assert not move.counts


def test_a_queue_decides_when_a_suspended_job_starts() -> None:
    job = training_job(scheduling={"queue": "a"})

    assert choose(observation(job, children=(child(suspended=True),))) == NoOp()


def test_a_queue_is_given_an_attempt_of_its_own_when_the_first_was_not_made_for_it() -> None:
    move = choose(observation(training_job(scheduling={"queue": "a"}), children=(child(suspended=True, held=True),)))

    assert isinstance(move, Next)
    assert not move.counts


def test_suspending_lets_the_ranks_save() -> None:
    move = choose(running(training_job(suspend=True)))

    assert isinstance(move, Stop)
    assert move.reason is Reason.SUSPENDED_BY_USER


def test_resuming_after_a_run_makes_another_attempt() -> None:
    move = choose(observation(children=(child(stopped="SuspendedByUser"),)))

    assert move == Next(Reason.RESUMED, "attempt 1 was stopped", False, 2)


def test_an_attempt_that_is_being_stopped_is_waited_for() -> None:
    ending = (pod(0, delete_requested=NOW), pod(1, delete_requested=NOW))

    assert choose(observation(children=(child(stopped="SuspendedByUser"),), pods=ending)) == NoOp()


def test_success_finishes_the_job() -> None:
    done = (pod(0, phase="Succeeded", exit_code=0), pod(1, phase="Succeeded", exit_code=0))

    move = choose(observation(children=(child(complete=True),), pods=done))

    assert isinstance(move, Finish)
    assert (move.phase, move.reason) == (Phase.SUCCEEDED, Reason.COMPLETED)


def test_success_is_told_when_the_pods_have_told_how_they_ended() -> None:
    assert choose(running(children=(child(complete=True),))) == NoOp()


def failed(code: int, status: Status | None = None, **spec: Any) -> Observation:
    pods = (pod(0, phase="Failed", exit_code=code), pod(1, phase="Failed", exit_code=143))
    return observation(training_job(status, **spec), children=(child(failed=True, failing=True),), pods=pods)


def test_a_failed_attempt_is_followed_by_another() -> None:
    move = choose(failed(1))

    assert isinstance(move, Next)
    assert move.counts
    assert move.reason is Reason.RANK_FAILED
    assert "gpt-1-0-x on node node1 ended with exit code 1" in move.message


def test_the_last_restart_is_the_last() -> None:
    move = choose(failed(1, Status(attempt=1, restarts=3)))

    assert isinstance(move, Finish)
    assert move.reason is Reason.RESTARTS_EXHAUSTED


def test_some_exit_codes_are_final() -> None:
    move = choose(failed(2))

    assert isinstance(move, Finish)
    assert move.reason is Reason.NON_RETRIABLE_EXIT_CODE


def test_other_exit_codes_can_be_made_final() -> None:
    assert isinstance(choose(failed(2, failurePolicy={"nonRetriableExitCodes": [3]})), Next)
    assert isinstance(choose(failed(3, failurePolicy={"nonRetriableExitCodes": [3]})), Finish)


def test_a_plugin_that_the_image_lacks_ends_the_job_with_the_reason() -> None:
    said = "error: --require-plugins dpp asks for the plug-in dpp, which is not installed here"
    pods = (pod(0, phase="Failed", exit_code=69, termination_message=said),)
    job = training_job(
        None,
        failurePolicy={"nonRetriableExitCodes": []},
        parallelism={"pipeline": 2},
        plugins={"dpp": {"enabled": True}},
    )

    move = choose(observation(job, children=(child(failed=True, failing=True),), pods=pods))

    assert isinstance(move, Finish)
    assert (move.phase, move.reason) == (Phase.FAILED, Reason.PLUGIN_MISSING)
    assert said in move.message


def test_a_failure_whose_pods_are_gone_is_told_by_the_job() -> None:
    job = child(failed=True, reason="PodFailurePolicy", message="exit code 2 matching FailJob")

    move = choose(observation(children=(job,)))

    assert isinstance(move, Finish)
    assert "exit code 2" in move.message


def test_a_pod_that_kubernetes_ended_counts_as_preempted() -> None:
    pods = (pod(0, phase="Failed", exit_code=143, disrupted="PreemptionByScheduler"), pod(1, phase="Failed"))

    move = choose(observation(children=(child(failed=True),), pods=pods))

    assert isinstance(move, Next)
    assert move.reason is Reason.PREEMPTED


def test_a_failed_attempt_is_not_over_while_its_pods_end() -> None:
    pods = (pod(0, phase="Failed", exit_code=1), pod(1, delete_requested=NOW))

    assert choose(observation(children=(child(failing=True),), pods=pods)) == NoOp()


def lost(seconds: int, ready: bool = False, job: Any = None) -> Observation:
    gone = pod(0, delete_requested=NOW - timedelta(seconds=seconds), ready=False)
    nodes = {"node1": Node("node1", ready=ready), "node2": Node("node2")}
    return observation(children=(job or child(),), pods=(gone, pod(1)), nodes=nodes)


def test_a_pod_stuck_on_a_lost_node_ends_the_attempt() -> None:
    move = choose(lost(60))

    assert isinstance(move, Stop)
    assert move.reason is Reason.NODE_LOST


@pytest.mark.parametrize("view", [lost(59), lost(600, ready=True)], ids=["not yet", "the node answers"])
def test_a_pod_that_still_ends_is_waited_for(view: Observation) -> None:
    assert choose(view) == NoOp()


def test_after_a_lost_node_the_stuck_pod_is_not_waited_for() -> None:
    view = lost(60, job=child(stopped="NodeLost"))
    alone = observation(children=view.children, pods=view.pods[:1], nodes=view.nodes)

    move = choose(alone)

    assert isinstance(move, Next)
    assert move.counts
    assert move.reason is Reason.NODE_LOST


def test_the_deadline_ends_the_job() -> None:
    status = Status(attempt=1, start_time=format_time(NOW - timedelta(seconds=100)))

    assert isinstance(choose(running(training_job(status, activeDeadlineSeconds=100))), Finish)
    assert choose(running(training_job(status, activeDeadlineSeconds=101))) == NoOp()


# ---- remediation

EXCLUDE = {"mode": "ExcludeNode"}


def test_a_confirmed_finding_moves_the_job_away() -> None:
    move = choose(running(training_job(remediation=EXCLUDE), report=report(suspicion())))

    assert isinstance(move, Stop)
    assert move.reason is Reason.REMEDIATION
    assert move.leave == "node2"
    assert [entry.name for entry in move.excluded or ()] == ["node2"]


@pytest.mark.parametrize(
    "finding",
    [
        suspicion(confidence=0.85),
        suspicion(page=False),
        suspicion(steps_open=2),
        suspicion(node=""),
        suspicion(cause="data_loading"),
        suspicion(cause="unknown"),
        suspicion(kind="imbalance"),
    ],
    ids=["unsure", "advice", "too fresh", "no node", "not the node's fault", "cause unknown", "nobody's fault"],
)
def test_what_is_not_sure_moves_nothing(finding: Any) -> None:
    assert choose(running(training_job(remediation=EXCLUDE), report=report(finding))) == NoOp()


@pytest.mark.parametrize("mode", ["ExcludeNode", "Taint"])
def test_a_node_on_which_the_attempt_has_no_pod_is_left_alone(mode: str) -> None:
    """Who sends findings may name any node."""
    job = training_job(remediation={"mode": mode})
    forged = report(suspicion(node="node3"), suspicion(node="control-plane"))

    assert choose(running(job, report=forged)) == NoOp()
    elsewhere = (pod(0), pod(1), pod(2, attempt=7, node="node3"))
    assert choose(running(job, pods=elsewhere, report=forged)) == NoOp()


def test_a_true_finding_counts_beside_a_forged_one() -> None:
    forged = suspicion(node="node3", confidence=1.0, effect_ratio=9.0)

    move = choose(running(training_job(remediation=EXCLUDE), report=report(forged, suspicion())))

    assert isinstance(move, Stop)
    assert move.leave == "node2"


def test_observing_moves_nothing() -> None:
    assert choose(running(report=report(suspicion()))) == NoOp()


def test_a_report_of_an_older_attempt_moves_nothing() -> None:
    job = training_job(Status(attempt=2), remediation=EXCLUDE)
    view = observation(job, children=(child(2),), pods=(pod(0, 2), pod(1, 2)), report=report(suspicion(), attempt=1))

    assert choose(view) == NoOp()


def excluded(seconds_ago: int, lasting: int = 86_400, name: str = "node2") -> ExcludedNode:
    since = NOW - timedelta(seconds=seconds_ago)
    return ExcludedNode(name=name, since=format_time(since), until=format_time(since + timedelta(seconds=lasting)))


def test_a_job_is_not_moved_again_while_it_cools_down() -> None:
    status = Status(attempt=1, excluded_nodes=[excluded(899, name="node3")])
    finding = report(suspicion())

    assert choose(running(training_job(status, remediation=EXCLUDE), report=finding)) == NoOp()
    later = Status(attempt=1, excluded_nodes=[excluded(900, name="node3")])
    assert isinstance(choose(running(training_job(later, remediation=EXCLUDE), report=finding)), Stop)


def test_the_circuit_breaker_holds_a_move_back() -> None:
    view = running(
        training_job(remediation=EXCLUDE),
        report=report(suspicion()),
        breaker=Breaker(acted=frozenset({"node9"}), limit=1),
    )

    assert isinstance(choose(view), Trip)


def test_a_decision_to_leave_is_carried_out_after_a_crash() -> None:
    status = Status(attempt=1, excluded_nodes=[excluded(1)])

    move = choose(running(training_job(status, remediation=EXCLUDE)))

    assert isinstance(move, Stop)
    assert move.leave == "node2"


# ---- no place


def waiting(job: Any, seconds: int, **values: Any) -> Observation:
    since = NOW - timedelta(seconds=seconds)
    homeless = pod(1, node="", phase="Pending", ready=False, unschedulable="0/3 nodes", pending_since=since)
    view = observation(job, pods=(pod(0), homeless), **values)
    fresh = current_digest(view, view.excluded)
    return observation(job, pods=view.pods, children=(child(digest=fresh),), **values)


def test_a_job_without_place_waits() -> None:
    assert choose(waiting(training_job(), 3600)) == NoOp()


def test_the_node_excluded_first_is_released_when_there_is_no_place() -> None:
    status = Status(attempt=1, excluded_nodes=[excluded(2000, name="node8"), excluded(1000, name="node9")])

    move = choose(waiting(training_job(status), 60))

    assert isinstance(move, Stop)
    assert move.reason is Reason.UNSCHEDULABLE
    assert [(entry.name, entry.until <= format_time(NOW)) for entry in move.excluded or ()] == [
        ("node8", True),
        ("node9", False),
    ]


def elastic(desired: int = 2, generation: int = 1) -> Any:
    status = Status(attempt=1, observed_generation=1, nodes=NodesStatus(desired=desired))
    return training_job(status, generation, nodes=2, elastic={"minNodes": 1, "maxNodes": 4})


def test_an_elastic_job_makes_do_with_the_place_there_is() -> None:
    assert choose(waiting(elastic(), 59)) == NoOp()

    move = choose(waiting(elastic(), 60))

    assert isinstance(move, Stop)
    assert (move.reason, move.nodes) == (Reason.RESIZED, 1)


def test_an_elastic_job_is_resized_when_the_user_wants_it() -> None:
    move = choose(running(elastic(desired=1, generation=2), children=(child(nodes=1),)))

    assert isinstance(move, Stop)
    assert (move.reason, move.nodes) == (Reason.RESIZED, 2)


def test_a_resized_job_keeps_its_size() -> None:
    move = choose(observation(elastic(desired=1), children=(child(stopped="Resized"),)))

    assert move == Next(Reason.RESIZED, "attempt 1 was stopped", False, 1)


def test_a_failed_elastic_job_tries_its_full_size_again() -> None:
    pods = (pod(0, phase="Failed", exit_code=1),)

    move = choose(observation(elastic(desired=1), children=(child(failed=True, nodes=1),), pods=pods))

    assert isinstance(move, Next)
    assert move.nodes == 2
