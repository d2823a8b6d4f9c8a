"""A node is cut off the network: the job goes on elsewhere, and what is left on the node does not hold it up."""

from __future__ import annotations

import pytest

from tests.e2e.kubernetes.jobs import GRACEFUL, conditions, job, nodes_of, pods, status, wait_phase
from tests.support.cluster import Cluster, OperatorProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


def test_a_job_leaves_a_node_that_is_cut_off(cluster: Cluster, operator: OperatorProcess) -> None:
    if not cluster.is_test_cluster:
        pytest.skip("nodes of this cluster can't be cut off")
    cluster.apply(job("cut", GRACEFUL, failurePolicy={"stuckTerminationSeconds": 5}))
    wait_phase(cluster, "cut", "Running")
    lost = pods(cluster, "cut")[0]["spec"]["nodeName"]

    cluster.tool("cut", lost)
    try:
        wait_until("the next attempt", lambda: status(cluster, "cut")["attempt"] == 2, 240)
        told = wait_phase(cluster, "cut", "Running", 120)
    finally:
        cluster.tool("heal", lost)

    second = {pod["spec"]["nodeName"] for pod in pods(cluster, "cut") if pod["metadata"]["name"].startswith("cut-2-")}
    assert lost not in second
    assert told["restarts"] == 1
    assert conditions(told)["Restarting"] == ("False", "Resumed")
    wait_until("the stuck pod is gone", lambda: lost not in nodes_of(cluster, "cut") or lost in second, 120)
    assert status(cluster, "cut")["attempt"] == 2
