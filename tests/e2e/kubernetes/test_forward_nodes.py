"""MegaFBD's forward ranks on a node of their own: two Jobs that live as one attempt on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.kubernetes.jobs import GRACEFUL, job, nodes_of, pods, status, wait_phase
from tests.support.cluster import Cluster, OperatorProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

HOST = "kubernetes.io/hostname"
MEET = """
import os, socket, time
master, port = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
first, index = os.environ.get("MEGATRONAPP_FIRST_NODE_RANK", "0"), os.environ["PET_NODE_RANK"]
if first == "0":
    with socket.create_server(("", port)) as server:
        caller = server.accept()[0].recv(64).decode()
        assert caller == "node rank 1 of 2", caller
else:
    for _ in range(100):
        try:
            with socket.create_connection((master, port)) as there:
                there.send(f"node rank {int(first) + int(index)} of {os.environ['PET_NNODES']}".encode())
                break
        except OSError:
            time.sleep(0.3)
    else:
        raise SystemExit("the backward ranks can't be reached")
"""
FORWARD_FAILS_FIRST = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
if os.environ["MEGATRONAPP_ATTEMPT"] == "1":
    sys.exit(1) if "MEGATRONAPP_FIRST_NODE_RANK" in os.environ else time.sleep(3600)
"""


def apart(cluster: Cluster, name: str, script: str, **spec: Any) -> dict[str, Any]:
    """One node of backward ranks and one of forward ranks, whose launcher is this script."""
    backward, forward = (node["metadata"]["labels"][HOST] for node in cluster.list("nodes")[:2])
    made = job(
        name,
        nodes=2,
        parallelism={"pipeline": 2},
        procPerNode=2,
        scheduling={"nodeSelector": {HOST: backward}},
        plugins={"fbd": {"enabled": True, "forwardNodeSelector": {HOST: forward}}},
        podTemplate={"spec": {"containers": [{"name": "trainer", "command": ["python", "-c", script]}]}},
        **spec,
    )
    del made["spec"]["command"], made["spec"]["args"]
    return made


def jobs(cluster: Cluster) -> list[str]:
    return sorted(found["metadata"]["name"] for found in cluster.list("jobs"))


def test_each_role_runs_on_its_node_and_finds_the_other(cluster: Cluster, operator: OperatorProcess) -> None:
    made = apart(cluster, "meet", MEET)
    cluster.apply(made)

    told = wait_phase(cluster, "meet", "Succeeded")

    where = {
        pod["metadata"]["labels"]["megatronapp.io/role"]: pod["spec"]["nodeSelector"] for pod in pods(cluster, "meet")
    }
    assert where == {
        "backward": made["spec"]["scheduling"]["nodeSelector"],
        "forward": made["spec"]["plugins"]["fbd"]["forwardNodeSelector"],
    }
    assert (told["attempt"], told["nodes"]["desired"]) == (1, 2)


def test_a_failure_of_forward_ranks_restarts_both(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(apart(cluster, "again", FORWARD_FAILS_FIRST, failurePolicy={"backoffSeconds": 1}))

    told = wait_phase(cluster, "again", "Succeeded")

    assert (told["attempt"], told["restarts"]) == (2, 1)
    assert jobs(cluster) == ["again-2", "again-2-forward"]


def test_both_are_suspended_resumed_and_deleted(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(apart(cluster, "paused", GRACEFUL))
    assert wait_phase(cluster, "paused", "Running")["nodes"]["summary"] == "2/2"
    assert len(nodes_of(cluster, "paused")) == 2

    cluster.apply(apart(cluster, "paused", GRACEFUL, suspend=True))
    wait_phase(cluster, "paused", "Suspended")
    assert not nodes_of(cluster, "paused")

    cluster.apply(apart(cluster, "paused", GRACEFUL))
    told = wait_phase(cluster, "paused", "Running")
    assert (told["attempt"], told["restarts"]) == (2, 0)

    cluster.kubectl("delete", "trainingjob", "paused")
    wait_until("all is gone", lambda: not jobs(cluster) and not cluster.list("services"), 60)


def test_made_suspended_both_start_when_the_job_is_resumed(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(apart(cluster, "held", GRACEFUL, suspend=True))
    wait_until("its Jobs are there", lambda: jobs(cluster) == ["held-1", "held-1-forward"])
    assert pods(cluster, "held") == []

    cluster.apply(apart(cluster, "held", GRACEFUL))

    assert wait_phase(cluster, "held", "Running")["attempt"] == 1


def test_a_deleted_forward_pod_restarts_both(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(apart(cluster, "torn", GRACEFUL))
    wait_phase(cluster, "torn", "Running")

    gone = next(pod for pod in pods(cluster, "torn") if pod["metadata"]["labels"]["megatronapp.io/role"] == "forward")
    cluster.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false")

    wait_until("the second attempt", lambda: status(cluster, "torn").get("attempt") == 2, 60)
    assert wait_phase(cluster, "torn", "Running")["restarts"] == 1
    assert len(nodes_of(cluster, "torn")) == 2
