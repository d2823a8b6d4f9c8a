"""A TrainingJob's life on a real cluster: pods, restarts, suspend, deadlines, what is refused, what is left."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from megatronapp.core.trainingjob import TrainingJob
from tests.e2e.kubernetes.conftest import operator_for
from tests.e2e.kubernetes.jobs import (
    FAIL_FIRST,
    FIND_EACH_OTHER,
    GRACEFUL,
    conditions,
    job,
    message,
    nodes_of,
    phase,
    pods,
    status,
    wait_phase,
)
from tests.support.cluster import Cluster, OperatorProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

APART: dict[str, Any] = {
    "parallelism": {"pipeline": 2},
    "plugins": {"fbd": {"enabled": True, "forwardPipeline": 1, "forwardNodeSelector": {"pool": "old"}}},
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "world": ({"parallelism": {"tensor": 3}}, "multiple of parallelism.tensor x pipeline x context"),
    "experts": ({"parallelism": {"expert": 4}}, "parallelism.tensor x pipeline x expert"),
    "chunks": ({"parallelism": {"virtualPipeline": 2}}, "virtualPipeline needs parallelism.pipeline"),
    "fbd": ({"plugins": {"fbd": {"enabled": True}}, "parallelism": {"context": 2}}, "plugins.fbd needs"),
    "fbd and dpp": (
        {"plugins": {"fbd": {"enabled": True}, "dpp": {"enabled": True}}, "parallelism": {"pipeline": 2}, "nodes": 4},
        "plugins.fbd can't be used with plugins.dpp or scope",
    ),
    "fbd experts": (
        {"plugins": {"fbd": {"enabled": True, "mode": "Linears"}}, "parallelism": {"pipeline": 2, "expert": 2}},
        "plugins.fbd runs experts in mode Input alone",
    ),
    "fbd replicas": (
        {"plugins": {"fbd": {"enabled": True}}, "parallelism": {"pipeline": 2, "expert": 2}, "nodes": 4},
        "replicas x parallelism.context to be a multiple of parallelism.expert",
    ),
    "fbd tensor": (
        {"plugins": {"fbd": {"enabled": True, "forwardTensor": 3}}, "parallelism": {"tensor": 2, "pipeline": 2}},
        "plugins.fbd.forwardTensor must divide parallelism.tensor",
    ),
    "fbd linears": (
        {
            "plugins": {"fbd": {"enabled": True, "mode": "Linears", "forwardTensor": 1}},
            "parallelism": {"tensor": 2, "pipeline": 2},
        },
        "as many forward as backward tensor ranks with experts and in mode Linears",
    ),
    "fbd ranks": (
        {"plugins": {"fbd": {"enabled": True}}, "parallelism": {"pipeline": 2}, "nodes": 3},
        "forward and backward ranks",
    ),
    "forward nodes": (
        {**APART, "nodes": 1, "procPerNode": 3},
        "the forward ranks of all replicas must be a multiple of procPerNode",
    ),
    "forward nodes in a queue": (
        {**APART, "nodes": 3, "scheduling": {"queue": "a"}},
        "forwardNodeSelector can't be used",
    ),
    "elastic": ({"elastic": {"minNodes": 3, "maxNodes": 4}}, "between elastic.minNodes"),
    "elastic sizes": (
        {"elastic": {"minNodes": 1, "maxNodes": 4}, "parallelism": {"pipeline": 2}},
        "every size from minNodes",
    ),
    "ucx": ({"plugins": {"dpp": {"enabled": True, "transport": "ucx"}}}, "needs rdma"),
    "dpp": ({"plugins": {"dpp": {"enabled": True}}}, "plugins.dpp needs parallelism.pipeline of at least 2"),
    "dpp cap": (
        {"plugins": {"dpp": {"enabled": True, "cap": 1}}, "parallelism": {"pipeline": 2, "virtualPipeline": 2}},
        "plugins.dpp.cap must be at least",
    ),
    "dpp chunks": (
        {"plugins": {"dpp": {"enabled": True, "policy": "ZbH1"}}, "parallelism": {"pipeline": 2, "virtualPipeline": 2}},
        "take one chunk a stage",
    ),
    "dpp split": (
        {"plugins": {"dpp": {"enabled": True, "policy": "ZbH1", "split": False}}, "parallelism": {"pipeline": 2}},
        "put W off",
    ),
    "plug-in": ({"plugins": {"scope": {"enabled": True}}}, "need the platform's own launcher: leave out command"),
    "serving nobody": ({"mode": "serve", "args": ["--load", "/x"]}, "mode serve needs plugins.scope.enabled"),
    "env": ({"env": [{"name": "MASTER_ADDR", "value": "x"}]}, "names that the platform sets"),
    "mounts": (
        {
            "storage": [
                {"name": "a", "claimName": "x", "mountPath": "/data"},
                {"name": "b", "claimName": "y", "mountPath": "/data"},
            ]
        },
        "mountPath is given twice",
    ),
    "labels": ({"labels": {"megatronapp.io/run": "x"}}, "labels: keys that the platform sets"),
    "annotations": ({"annotations": {"batch.kubernetes.io/x": "y"}}, "annotations: keys that the platform sets"),
    "policy": ({"plugins": {"dpp": {"policy": "Widest"}}}, "spec.plugins.dpp.policy"),
    "negative": ({"nodes": 0}, "spec.nodes"),
    "both scenarios": (
        {"plugins": {"faults": {"scenario": {"faults": []}, "scenarioFrom": {"name": "a", "key": "b"}}}},
        "scenario or scenarioFrom",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_job_is_refused_with_a_message_that_helps(cluster: Cluster, what: str) -> None:
    spec, expected = WRONG[what]
    wrong = job("wrong", **spec)

    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.apply(wrong)

    assert expected in refused.value.stderr
    with pytest.raises(ValidationError):
        TrainingJob.model_validate(wrong)


def test_a_name_that_is_too_long_for_its_pods_is_refused(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.apply(job("n" * 55))

    assert "at most 54 characters" in refused.value.stderr


def test_a_name_that_is_too_long_for_forward_pods_is_refused(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.apply(job("n" * 47, **APART, nodes=3))

    assert "at most 46 characters" in refused.value.stderr


def test_what_must_not_change_while_a_job_runs_is_refused(cluster: Cluster) -> None:
    cluster.apply(job("fixed"))

    for change in (
        {"image": "other"},
        {"procPerNode": 2},
        {"nodes": 3},
        {"managedBy": "somebody"},
        {"backend": "JobSet"},
    ):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            cluster.apply(job("fixed", **change))
        assert "can't be changed" in refused.value.stderr
    cluster.apply(job("fixed", suspend=True))
    cluster.apply(job("fixed", suspend=True, nodes=3, image="other"))


def test_pods_run_on_nodes_of_their_own_and_success_is_told(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("good", FIND_EACH_OTHER))

    wait_phase(cluster, "good", "Running")
    assert len(nodes_of(cluster, "good")) == 2
    told = wait_phase(cluster, "good", "Succeeded")
    assert conditions(told)["Complete"] == ("True", "Completed")
    assert told["attempt"] == 1
    line = cluster.kubectl("get", "trainingjobs", "good")
    assert "Succeeded" in line


def test_a_failed_attempt_is_followed_by_another(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("again", FAIL_FIRST))

    told = wait_phase(cluster, "again", "Succeeded")

    assert (told["attempt"], told["restarts"]) == (2, 1)
    assert [found["metadata"]["name"] for found in cluster.list("jobs")] == ["again-2"]


def test_a_final_exit_code_ends_the_job_and_its_log_stays(cluster: Cluster, operator: OperatorProcess) -> None:
    script = "import sys; print('error: --flag: no such thing', file=sys.stderr); sys.exit(2)"
    cluster.apply(job("final", script))

    told = wait_phase(cluster, "final", "Failed")

    assert conditions(told)["Failed"] == ("True", "NonRetriableExitCode")
    assert "exit code 2 (error: --flag: no such thing)" in message(told, "Failed")
    assert told["restarts"] == 0
    failed = next(pod for pod in pods(cluster, "final") if pod["status"]["phase"] == "Failed")
    assert "no such thing" in cluster.kubectl("logs", failed["metadata"]["name"])


def test_restarts_are_limited(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("limited", "import sys; sys.exit(1)", failurePolicy={"maxRestarts": 1}))

    told = wait_phase(cluster, "limited", "Failed")

    assert conditions(told)["Failed"] == ("True", "RestartsExhausted")
    assert (told["attempt"], told["restarts"]) == (2, 1)


def test_a_killed_pod_restarts_the_job(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("killed", GRACEFUL))
    wait_phase(cluster, "killed", "Running")

    cluster.kubectl("delete", "pod", pods(cluster, "killed")[0]["metadata"]["name"], "--wait=false")

    wait_until("the second attempt runs", lambda: status(cluster, "killed").get("attempt") == 2, 60)
    assert wait_phase(cluster, "killed", "Running")["restarts"] == 1


def test_suspend_lets_pods_go_and_resume_begins_another_attempt(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("paused", GRACEFUL))
    wait_phase(cluster, "paused", "Running")

    cluster.apply(job("paused", GRACEFUL, suspend=True))
    told = wait_phase(cluster, "paused", "Suspended")
    assert {pod["status"]["phase"] for pod in pods(cluster, "paused")} <= {"Succeeded", "Failed"}
    assert "startTime" not in told

    cluster.apply(job("paused", GRACEFUL))
    told = wait_phase(cluster, "paused", "Running")
    assert (told["attempt"], told["restarts"]) == (2, 0)


def test_a_job_made_suspended_starts_when_it_is_resumed(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("held", suspend=True))
    wait_phase(cluster, "held", "Suspended")
    wait_until("its Job is there", lambda: cluster.get("job", "held-1"))

    cluster.apply(job("held"))

    assert wait_phase(cluster, "held", "Running")["attempt"] == 1


def test_a_deleted_job_takes_its_children_along_and_can_come_again(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("twice", GRACEFUL))
    wait_phase(cluster, "twice", "Running")
    first = cluster.get("job", "twice-1")

    cluster.kubectl("delete", "trainingjob", "twice")
    cluster.apply(job("twice", GRACEFUL))

    wait_phase(cluster, "twice", "Running")
    second = cluster.get("job", "twice-1")
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    cluster.kubectl("delete", "trainingjob", "twice")
    wait_until("all is gone", lambda: not cluster.list("jobs") and not cluster.list("services"), 60)


def test_the_deadline_ends_a_job(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("slow", GRACEFUL, activeDeadlineSeconds=6))

    told = wait_phase(cluster, "slow", "Failed")

    assert conditions(told)["Failed"] == ("True", "DeadlineExceeded")
    wait_until("its pods are gone", lambda: not nodes_of(cluster, "slow"), 60)


def test_time_to_live_clears_children_and_keeps_the_job(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("short", "pass", ttlSecondsAfterFinished=2))

    wait_phase(cluster, "short", "Succeeded")
    wait_until("its children are gone", lambda: not cluster.list("jobs") and not cluster.list("services"), 60)
    assert phase(cluster, "short") == "Succeeded"


def test_a_typo_in_the_pod_template_is_told(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("typo", podTemplate={"spec": {"hostNetwrok": True}}))

    wait_until("it is told", lambda: "InvalidTemplate" in conditions(status(cluster, "typo")))
    assert "hostNetwrok" in message(status(cluster, "typo"), "InvalidTemplate")
    assert cluster.list("jobs") == []

    cluster.apply(job("typo", podTemplate={"spec": {"hostname": "own"}}))
    wait_until("it is made now", lambda: cluster.list("jobs"))
    wait_until("all is well", lambda: conditions(status(cluster, "typo"))["InvalidTemplate"][0] == "False")


def test_what_only_the_model_sees_is_told_in_a_condition(cluster: Cluster, operator: OperatorProcess) -> None:
    wrong = job("flags", parallelism={"pipeline": 2})
    wrong["spec"]["args"] = ["--pipeline-model-parallel-size=1"]
    cluster.apply(wrong)

    wait_until("it is told", lambda: "InvalidTemplate" in conditions(status(cluster, "flags")))
    assert "differs from parallelism.pipeline 2" in message(status(cluster, "flags"), "InvalidTemplate")


def test_an_elastic_job_changes_its_size(cluster: Cluster, operator: OperatorProcess) -> None:
    limits = {"elastic": {"minNodes": 1, "maxNodes": 3}}
    cluster.apply(job("stretch", GRACEFUL, nodes=1, **limits))
    wait_phase(cluster, "stretch", "Running")

    cluster.apply(job("stretch", GRACEFUL, nodes=3, **limits))

    wait_until("three pods run", lambda: status(cluster, "stretch")["nodes"]["summary"] == "3/3", 90)
    told = status(cluster, "stretch")
    assert (told["attempt"], told["restarts"]) == (2, 0)


def test_somebody_elses_job_of_the_same_name_is_left_alone(cluster: Cluster, operator: OperatorProcess) -> None:
    container = {"name": "x", "image": "nobody.example.com/x"}
    foreign = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mine-1"},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    cluster.apply(foreign)

    cluster.apply(job("mine"))

    wait_until("it is told", lambda: "InvalidTemplate" in conditions(status(cluster, "mine")))
    assert "belongs to somebody else" in message(status(cluster, "mine"), "InvalidTemplate")


def test_a_job_managed_by_another_is_not_touched(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("other", managedBy="example.com/manager"))
    cluster.apply(job("own"))

    wait_phase(cluster, "own", "Running")
    assert status(cluster, "other") == {}


def test_a_second_operator_takes_over(cluster: Cluster, tmp_path: Path) -> None:
    operator = operator_for(cluster, tmp_path, lease_seconds="15")
    operator.start()
    operator.wait_ready()
    second = operator_for(cluster, tmp_path, lease_seconds="15")
    second.start()
    wait_until("it waits", lambda: second.metric("megatronapp_operator_leader") == 0.0)

    operator.kill()

    try:
        second.wait_ready(60)
        cluster.apply(job("after"))
        wait_phase(cluster, "after", "Running")
    finally:
        assert second.stop() == 0


ENDS_WELL = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_deleted_pod_that_ends_with_zero_is_not_completed(
    cluster: Cluster, operator: OperatorProcess, nodes: int
) -> None:
    """Kubernetes counts it as completed, and would neither replace it nor end the others."""
    cluster.apply(job("polite", ENDS_WELL, nodes=nodes))
    wait_phase(cluster, "polite", "Running")

    cluster.kubectl("delete", "pod", pods(cluster, "polite")[0]["metadata"]["name"], "--wait=false")

    wait_until("the second attempt", lambda: status(cluster, "polite").get("attempt") == 2, 60)
    told = wait_phase(cluster, "polite", "Running")
    assert told["restarts"] == 1
    assert "Complete" not in conditions(told)


def test_a_suspended_job_whose_pods_end_with_zero_is_not_completed(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("polite", ENDS_WELL))
    wait_phase(cluster, "polite", "Running")

    cluster.apply(job("polite", ENDS_WELL, suspend=True))
    wait_phase(cluster, "polite", "Suspended")
    cluster.apply(job("polite", ENDS_WELL))

    assert wait_phase(cluster, "polite", "Running")["attempt"] == 2


def test_failures_in_a_row_are_waited_for_longer_each_time_and_each_is_an_event(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    policy = {"maxRestarts": 2, "backoffSeconds": 3}
    cluster.apply(job("storm", "import sys; sys.exit(1)", nodes=1, failurePolicy=policy))

    wait_until("it waits", lambda: status(cluster, "storm").get("nextAttemptTime"), 30)
    assert "attempt 2 starts at" in message(status(cluster, "storm"), "Restarting")
    told = wait_phase(cluster, "storm", "Failed")

    assert conditions(told)["Failed"] == ("True", "RestartsExhausted")
    events = cluster.list("events")
    failures = [e["message"] for e in events if e["reason"] == "RankFailed" and e["involvedObject"]["name"] == "storm"]
    assert sorted(text.split(":")[0] for text in failures) == ["attempt 1", "attempt 2"]
    made = {e["involvedObject"]["name"]: e["firstTimestamp"] for e in events if e["reason"] == "SuccessfulCreate"}
    seconds = [datetime.fromisoformat(made[f"storm-{attempt}"]).timestamp() for attempt in (1, 2, 3)]
    assert seconds[1] - seconds[0] >= 3
    assert seconds[2] - seconds[1] >= 6
