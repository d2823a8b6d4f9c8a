"""A hostile object beside an innocent job that is made after it: the job gets its children and its status.

What the definition now refuses is put there under a definition without these bounds, as an earlier version's was: it
is still there after an upgrade.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from megatronapp.operator.crd import definition
from tests.e2e.kubernetes.conftest import operator_for
from tests.e2e.kubernetes.jobs import conditions, job, message, pods, status, wait_phase
from tests.support.cluster import Cluster, OperatorProcess, wait_until
from tests.support.proxy import ApiProxy

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

FAR = 10**12


def in_template(**pod: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": pod}}


def deep(levels: int) -> dict[str, Any]:
    return in_template(affinity=f"deep {levels}")


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "attempt label": (
        {"podTemplate": {"metadata": {"labels": {"megatronapp.io/attempt": "abc"}}}},
        "megatronapp.io/attempt is set by the platform",
    ),
    "another job's label": (
        {"podTemplate": {"metadata": {"labels": {"megatronapp.io/training-job": "vic"}}}},
        "megatronapp.io/training-job is set by the platform",
    ),
    "container name": (in_template(containers=[{"name": {"a": "b"}}]), "name must be given, as text"),
    "300 levels": (deep(300), "nested more than 32 levels deep"),
    "1,100 levels": (deep(1100), "nested more than 32 levels deep"),
}
"""Specs that no schema can refuse, and what the job is told."""

NUMBERS: dict[str, dict[str, Any]] = {
    "activeDeadlineSeconds": {"activeDeadlineSeconds": FAR},
    "cooldownSeconds": {"remediation": {"cooldownSeconds": FAR}},
    "ttlSecondsAfterFinished": {"ttlSecondsAfterFinished": FAR},
    "stuckTerminationSeconds": {"failurePolicy": {"stuckTerminationSeconds": FAR}},
}


def put(cluster: Cluster, body: dict[str, Any]) -> None:
    """By create: kubectl itself reads no deep objects, and its own annotation would be as deep."""
    text = json.dumps(body)
    for levels in (300, 1100):
        text = text.replace(f'"deep {levels}"', '{"a":' * levels + "1" + "}" * levels)
    path = f"/apis/megatronapp.io/v1alpha1/namespaces/{cluster.namespace}/trainingjobs"
    cluster.kubectl("create", "--raw", path, "-f", "-", text=text)


def innocent_is_served(cluster: Cluster, operator: OperatorProcess) -> None:
    name = f"innocent-{uuid.uuid4().hex[:5]}"
    cluster.apply(job(name, nodes=1))

    told = wait_phase(cluster, name, "Running")

    assert operator.alive()
    assert [pod["status"]["phase"] for pod in pods(cluster, name)] == ["Running"]
    assert cluster.get("service", f"{name}-ranks")
    assert conditions(told)["PodsReady"] == ("True", "PodsReady")
    assert "ReconcileError" not in conditions(told)
    cluster.kubectl("delete", "trainingjob", name, "--wait=false")


def is_told(cluster: Cluster, name: str, kind: str, reason: str) -> bool:
    return conditions(status(cluster, name)).get(kind) == ("True", reason)


def starts_again(operator: OperatorProcess, cluster: Cluster) -> None:
    """What is there at the start is read as well as what is told of later."""
    assert operator.stop() == 0
    cluster.kubectl("delete", "lease", "megatronapp-operator", "--ignore-not-found")
    operator.start()
    operator.wait_ready()


@pytest.mark.parametrize("attack", SPECS)
def test_a_hostile_spec_is_refused_and_hinders_nobody(cluster: Cluster, operator: OperatorProcess, attack: str) -> None:
    spec, says = SPECS[attack]
    put(cluster, job("hostile", **spec))

    innocent_is_served(cluster, operator)
    wait_until("it is told", lambda: is_told(cluster, "hostile", "InvalidTemplate", "SpecRefused"), 30)
    assert says in message(status(cluster, "hostile"), "InvalidTemplate")
    starts_again(operator, cluster)
    innocent_is_served(cluster, operator)
    assert cluster.list("jobs", "megatronapp.io/training-job=hostile") == []
    assert operator.metric("megatronapp_operator_reconcile_errors_total") == 0


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_beyond_all_dates_is_refused_by_the_server(cluster: Cluster, field: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.apply(job("hostile", **NUMBERS[field]))

    assert f"{field}: Invalid value: {FAR}" in refused.value.stderr.replace("1e+12", str(FAR))


@pytest.fixture
def unbounded(whole_cluster: Cluster) -> Iterator[None]:
    """The definition as it was: numbers of any size."""
    whole_cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(_without_maxima()))
    yield
    whole_cluster.install_definition()


def _without_maxima() -> dict[str, Any]:
    found = deepcopy(definition())
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for node in (spec, spec["remediation"]["properties"], spec["failurePolicy"]["properties"]):
        for name in NUMBERS:
            node.get(name, {}).pop("maximum", None)
    return found


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_beyond_all_dates_that_was_stored_before_hinders_nobody(
    cluster: Cluster, unbounded: None, tmp_path: Path, field: str, whole_cluster: Cluster
) -> None:
    wait_until("it is taken", lambda: _taken(cluster, job("hostile", **NUMBERS[field])), 30)
    whole_cluster.install_definition()
    operator = operator_for(cluster, tmp_path)
    operator.start()
    try:
        operator.wait_ready()
        innocent_is_served(cluster, operator)
        wait_until("it is told", lambda: is_told(cluster, "hostile", "InvalidTemplate", "SpecRefused"), 30)
        assert field in message(status(cluster, "hostile"), "InvalidTemplate")
    finally:
        operator.stop()


def _taken(cluster: Cluster, body: dict[str, Any]) -> bool:
    """The server takes a moment to work by a definition that has changed."""
    try:
        cluster.apply(body)
    except subprocess.CalledProcessError:
        return False
    return True


def a_job(name: str, labels: dict[str, str], owner: dict[str, Any] | None = None) -> dict[str, Any]:
    reference = {"apiVersion": "megatronapp.io/v1alpha1", "kind": "TrainingJob", "controller": True}
    owners = [{**reference, "name": owner["name"], "uid": owner["uid"]}] if owner else []
    managed = {"app.kubernetes.io/managed-by": "megatronapp-operator"}
    template = job(name)["spec"]
    container = {"name": "x", "image": template["image"], "command": ["true"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": managed | labels, "ownerReferences": owners},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def test_a_job_of_somebody_else_with_our_labels_is_ignored(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(a_job("bare", {"megatronapp.io/training-job": "nobody"}))

    innocent_is_served(cluster, operator)
    starts_again(operator, cluster)
    innocent_is_served(cluster, operator)
    assert "object_set_aside" not in operator.log.read_text()


def test_an_attempt_that_can_not_be_read_is_told_to_its_job_alone(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(job("spoilt"))
    wait_phase(cluster, "spoilt", "Running")
    labels = {"megatronapp.io/training-job": "spoilt", "megatronapp.io/attempt": "abc"}
    cluster.apply(a_job("spoilt-9", labels, (cluster.get("trainingjob", "spoilt") or {})["metadata"]))

    innocent_is_served(cluster, operator)
    wait_until("it is told", lambda: is_told(cluster, "spoilt", "ReconcileError", "UnreadableObject"), 30)
    assert "jobs/spoilt-9 can't be read" in message(status(cluster, "spoilt"), "ReconcileError")
    assert len(pods(cluster, "spoilt")) == 2, "what runs runs on"
    starts_again(operator, cluster)
    innocent_is_served(cluster, operator)

    cluster.kubectl("delete", "job", "spoilt-9")
    wait_until("it is cleared", lambda: conditions(status(cluster, "spoilt"))["ReconcileError"][0] == "False", 30)
    assert "object_set_aside" in operator.log.read_text()


OWN_WINS = """
import os, sys
own = (os.environ["PET_NNODES"], os.environ["MEGATRONAPP_JOB"].rsplit("/")[-1], os.environ["OTHER"])
sys.exit(f"shadowed: {own}" if own != ("1", "shadowed", "kept") else 0)
"""


def test_what_env_from_brings_does_not_shadow_the_platforms(cluster: Cluster, operator: OperatorProcess) -> None:
    stranger = {"PET_NNODES": "9", "MEGATRONAPP_JOB": "other/job", "OTHER": "kept"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stranger"}, "data": stranger})
    cluster.apply(
        job(
            "shadowed",
            OWN_WINS,
            nodes=1,
            envFrom=[{"configMapRef": {"name": "stranger"}}],
            failurePolicy={"maxRestarts": 0},
        )
    )

    wait_until("it has ended", lambda: status(cluster, "shadowed").get("phase") in {"Succeeded", "Failed"}, 90)
    told = status(cluster, "shadowed")
    assert conditions(told)["Complete"] == ("True", "Completed"), told["conditions"]


def test_contention_on_a_quota_costs_no_job_its_children(cluster: Cluster, tmp_path: Path) -> None:
    """Each job's objects are counted by one ResourceQuota; a proxy answers creates as its contention does."""
    with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
        proxy.contentions = 12
        operator = operator_for(Cluster(proxy.own_kubeconfig, cluster.namespace), tmp_path)
        operator.start()
        try:
            operator.wait_ready()
            names = [f"quota-{number}" for number in range(3)]
            cluster.apply(*(job(name, nodes=1) for name in names))
            for name in names:
                wait_phase(cluster, name, "Running", 120)
        finally:
            operator.kill()
        assert proxy.contentions == 0
