"""What a job may ask of its pods: refused by the operator, and before that by the API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kubernetes.jobs import conditions, job, message, status
from tests.support.cluster import Cluster, OperatorProcess, wait_until
from tests.support.helm import render

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

GREEDY: dict[str, dict[str, Any]] = {
    "podTemplateFields": {"podTemplate": {"spec": {"hostNetwork": True}}},
    "serviceAccounts": {"serviceAccountName": "robot"},
    "secrets": {"envFrom": [{"secretRef": {"name": "s"}}]},
    "podSecurity": {"podTemplate": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}},
}


@pytest.mark.parametrize("switch", GREEDY)
def test_a_pod_that_is_more_than_a_rank_is_not_made_and_the_switch_is_named(
    cluster: Cluster, operator: OperatorProcess, switch: str
) -> None:
    cluster.apply(job("greedy", **GREEDY[switch]))

    wait_until("it is told", lambda: "InvalidTemplate" in conditions(status(cluster, "greedy")))
    assert f"operator.jobs.{switch}" in message(status(cluster, "greedy"), "InvalidTemplate")
    assert "InvalidTemplate" in message(status(cluster, "greedy"), "PodsReady")
    assert cluster.list("jobs") == []


@pytest.fixture
def stored(cluster: Cluster) -> None:
    """A job of before the policy."""
    cluster.apply(job("before", **GREEDY["secrets"]))


@pytest.fixture
def admission(cluster: Cluster, stored: None) -> Iterator[None]:
    """The chart's policy, for this test's namespace alone."""
    values = {"watchNamespaces": [cluster.namespace], "fullnameOverride": f"a-{cluster.namespace}"}
    policies = [o for o in render(values, "--kube-version", "1.34") if o["kind"].startswith("ValidatingAdmission")]
    cluster.apply(*policies)
    yield
    cluster.kubectl(
        "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", policies[0]["metadata"]["name"]
    )


def refused(cluster: Cluster, body: dict[str, Any]) -> str:
    """What the server says to a change that is not made; "" where it would take it."""
    try:
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", text=json.dumps(body))
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


@pytest.mark.parametrize("switch", GREEDY)
def test_the_api_server_says_so_to_whoever_applies_the_job(cluster: Cluster, admission: None, switch: str) -> None:
    # The server takes a moment to work by a policy that is new.
    said = wait_until("it is refused", lambda: refused(cluster, job("greedy", **GREEDY[switch])), 30)

    assert f"operator.jobs.{switch}" in said
    cluster.apply(job("modest", suspend=True))


def test_a_job_of_before_may_be_suspended_but_not_ask_for_more(cluster: Cluster, admission: None) -> None:
    more = job("before", **GREEDY["secrets"], **GREEDY["serviceAccounts"])
    wait_until("it is refused", lambda: refused(cluster, more), 30)

    cluster.apply(job("before", **GREEDY["secrets"], suspend=True))
    cluster.kubectl("label", "trainingjob", "before", "team=a")
