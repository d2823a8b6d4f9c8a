"""A job that can't start for want of something says so in Kubernetes' own words, and has failed in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.conftest import operator_for
from tests.e2e.kubernetes.jobs import conditions, job, message, status, wait_phase
from tests.support.cluster import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

MISSING = {
    "volumes": [{"name": "x", "configMap": {"name": "nowhere"}}],
    "containers": [{"name": "trainer", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
}
CAN_NOT_START: dict[str, tuple[dict[str, Any], str, str]] = {
    "image": ({"image": "nobody.invalid/nothing:1"}, "ImagePullBackOff", "nobody.invalid/nothing:1"),
    "image that is not pulled": (
        {"image": "nobody.invalid/nothing:1", "imagePullPolicy": "Never"},
        "ErrImageNeverPull",
        "nobody.invalid/nothing:1",
    ),
    "secret": (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "k"}}}]},
        "CreateContainerConfigError",
        'secret "nowhere" not found',
    ),
    "service account": ({"serviceAccountName": "nobody"}, "FailedCreate", 'serviceaccount "nobody" not found'),
    "volume": (
        {"podTemplate": {"spec": MISSING}},
        "FailedMount",
        'configmap "nowhere" not found',
    ),
}


def is_told(seen: dict[str, Any], reason: str, says: str) -> bool:
    """The kubelet's first attempt may fail because it has not looked yet; the operator says what the latest says."""
    return conditions(seen).get("PodsReady") == ("False", reason) and says in message(seen, "PodsReady")


@pytest.mark.parametrize("what", CAN_NOT_START)
def test_what_is_missing_is_told_in_kubernetes_words_and_has_a_limit(
    cluster: Cluster, tmp_path: Path, what: str
) -> None:
    spec, reason, says = CAN_NOT_START[what]
    operator = operator_for(cluster, tmp_path, service_accounts="*", secret_names="*")
    operator.start()
    try:
        operator.wait_ready()
        cluster.apply(job("stuck", nodes=1, failurePolicy={"startupTimeoutSeconds": 20}, **spec))

        wait_until("it is told", lambda: is_told(status(cluster, "stuck"), reason, says), 60)
        told = wait_phase(cluster, "stuck", "Failed")
    finally:
        operator.stop()

    assert conditions(told)["Failed"] == ("True", "StartupTimeout")
    assert says in message(told, "Failed")
    assert reason in {e["reason"] for e in cluster.list("events") if e["involvedObject"]["kind"] == "TrainingJob"}
