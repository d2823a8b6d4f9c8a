"""The API's objects as values."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from megatronapp.operator.nodes import MARK, TAINT, acted_since, is_due, is_tainted, mark_for, marked, released
from megatronapp.operator.render import Plan, render_job
from megatronapp.operator.snapshots import ChildJob, Node, Pod, SlowMark, format_time, is_stuck, parse_time
from tests.unit.operator.samples import NOW, PLATFORM, UID, pod, training_job

HOUR = timedelta(hours=1)


def test_a_rendered_job_is_seen_as_what_it_is() -> None:
    body = render_job(Plan(training_job(suspend=True), 3, 2, (), PLATFORM))
    body["metadata"]["resourceVersion"] = "12"

    child = ChildJob.of(body)

    assert child is not None
    assert (child.name, child.attempt, child.nodes, child.run, child.version) == ("gpt-3", 3, 2, UID, 12)
    assert child.suspended
    assert child.digest


def owned(labels: dict[str, str], kind: str = "TrainingJob") -> dict[str, Any]:
    owners = [{"kind": kind, "name": "gpt", "uid": UID, "controller": True}]
    return {"name": "gpt-1", "namespace": "team", "uid": "c", "labels": labels, "ownerReferences": owners}


def test_somebody_elses_job_with_the_same_labels_is_none_of_ours() -> None:
    labels = {"megatronapp.io/training-job": "gpt", "megatronapp.io/run": UID, "megatronapp.io/attempt": "1"}

    assert ChildJob.of({"metadata": owned(labels, kind="CronJob"), "spec": {}}) is None
    assert ChildJob.of({"metadata": {"name": "x", "namespace": "team", "labels": labels}, "spec": {}}) is None
    assert ChildJob.of({"metadata": owned(labels, kind="JobSet"), "spec": {}}) is not None


@pytest.mark.parametrize("labels", [{}, {"megatronapp.io/attempt": "abc"}, {"megatronapp.io/attempt": "-1"}])
def test_an_attempt_that_is_no_number_is_told(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"label megatronapp\.io/attempt is .*, not the number of an attempt"):
        ChildJob.of({"metadata": owned(labels), "spec": {}})


def test_a_pod_with_a_wrong_attempt_is_a_rank_of_none() -> None:
    assert Pod.of({"metadata": {"name": "x", "labels": {"megatronapp.io/attempt": "abc"}}}).attempt == 0


def test_a_failing_job_says_why() -> None:
    body = {
        "metadata": owned({"megatronapp.io/attempt": "1"}),
        "spec": {"completions": 2},
        "status": {
            "conditions": [
                {"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 2"}
            ]
        },
    }

    child = ChildJob.of(body)

    assert child is not None
    assert child.failing
    assert not child.failed
    assert (child.reason, child.message) == ("PodFailurePolicy", "exit code 2")


def test_a_failed_pod_keeps_its_last_words() -> None:
    state = {"terminated": {"exitCode": 2, "message": "loading\nerror: no such flag\n\n"}}
    body = {
        "metadata": {"name": "gpt-1-0-x", "labels": {"megatronapp.io/attempt": "1"}},
        "spec": {"nodeName": "node1"},
        "status": {"phase": "Failed", "containerStatuses": [{"state": state}]},
    }

    observation = Pod.of(body)

    assert (observation.attempt, observation.node, observation.exit_code, observation.termination_message) == (
        1,
        "node1",
        2,
        "error: no such flag",
    )
    assert observation.ended


def test_a_deletion_was_requested_a_grace_period_before_its_time_stamp() -> None:
    meta = {"name": "x", "labels": {}, "deletionTimestamp": "2026-01-01T12:02:00Z", "deletionGracePeriodSeconds": 120}

    assert Pod.of({"metadata": meta}).delete_requested == NOW


def test_a_pod_without_a_place_says_since_when() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
    }

    observation = Pod.of({"metadata": {"name": "x", "labels": {}}, "status": {"conditions": [condition]}})

    assert (observation.unschedulable, observation.pending_since) == ("0/3 nodes", NOW)


def test_a_pod_of_a_node_that_is_gone_is_stuck() -> None:
    ending = pod(0, delete_requested=NOW - timedelta(seconds=60))

    assert is_stuck(ending, {}, 60, NOW)
    assert not is_stuck(ending, {"node1": Node("node1")}, 60, NOW)
    assert not is_stuck(pod(0), {}, 60, NOW)


def test_times_survive_a_round_trip() -> None:
    assert parse_time(format_time(NOW)) == NOW
    assert parse_time(None) is None


def test_what_is_no_time_is_none_and_without_a_zone_it_is_utc() -> None:
    assert parse_time("yesterday") is None
    assert parse_time("2026-01-01T12:00:00") == NOW


# ---- marks on nodes

MARKED = SlowMark(NOW - 25 * HOUR, NOW - HOUR, "team/gpt")


def body(*taints: dict[str, str]) -> dict[str, object]:
    return {"metadata": {"name": "n", "resourceVersion": "5"}, "spec": {"taints": list(taints)}}


def test_a_mark_survives_its_annotation() -> None:
    assert SlowMark.parse(MARKED.text()) == MARKED


@pytest.mark.parametrize("text", ["", "{}", "x", '{"since": 1}', '{"since": "x", "until": "y", "job": "z"}'])
def test_what_others_wrote_is_no_mark(text: str) -> None:
    assert SlowMark.parse(text) is None


def test_taints_of_others_stay() -> None:
    other = {"key": "example.com/x", "effect": "NoSchedule"}

    patch = marked(body(other), MARKED)

    assert [taint["key"] for taint in patch["spec"]["taints"]] == ["example.com/x", TAINT]
    assert patch["metadata"]["resourceVersion"] == "5"
    assert MARK in patch["metadata"]["annotations"]
    own = {"key": TAINT, "effect": "NoSchedule"}
    assert released(body(other, own))["spec"]["taints"] == [other]
    assert released(body(own))["spec"]["taints"] is None


def tainted(mark: SlowMark | None) -> Node:
    return Node("n", taints=((TAINT, "NoSchedule"),), mark=mark)


def test_a_node_is_released_when_its_time_is_up() -> None:
    assert is_due(tainted(MARKED), NOW)
    assert not is_due(tainted(SlowMark(NOW, NOW + HOUR, "x")), NOW)


def test_somebody_elses_taint_is_never_released() -> None:
    assert not is_due(tainted(None), NOW)
    assert not is_due(Node("n", mark=MARKED), NOW)


def test_a_node_found_slow_again_is_left_alone_twice_as_long() -> None:
    again = mark_for(Node("n", mark=MARKED), NOW, NOW + 24 * HOUR, "team/gpt")

    assert again is not None
    assert again.until == NOW + 48 * HOUR


def test_after_probation_it_is_the_first_time_again() -> None:
    old = SlowMark(NOW - 100 * HOUR, NOW - 76 * HOUR, "x")

    again = mark_for(Node("n", mark=old), NOW, NOW + 24 * HOUR, "team/gpt")

    assert again is not None
    assert again.until == NOW + 24 * HOUR


def test_a_longer_mark_is_not_made_shorter() -> None:
    longer = SlowMark(NOW, NOW + 48 * HOUR, "x")

    assert mark_for(tainted(longer), NOW, NOW + 24 * HOUR, "team/gpt") is None
    assert is_tainted(tainted(longer))


def test_the_breaker_counts_nodes_of_its_window() -> None:
    nodes = [Node("a", mark=SlowMark(NOW, NOW + HOUR, "x")), Node("b", mark=MARKED), Node("c")]

    assert acted_since(nodes, NOW - HOUR) == {"a"}
