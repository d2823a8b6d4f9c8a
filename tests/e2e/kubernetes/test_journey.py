"""The whole way: install the chart, train on two nodes, one of which becomes slow, and see the job leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.kubernetes.jobs import conditions, nodes_of, phase, pods, status, wait_phase
from tests.e2e.kubernetes.monitoring import Monitoring
from tests.e2e.kubernetes.training import Logs, gone_afterwards, training_job, undisturbed_losses
from tests.support.cluster import Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(2400, func_only=True)]

SLOW_FROM = 41
STEPS = 90
COMPONENTS = {"collector", "detector", "gateway", "operator"}
TAINT = "megatronapp.io/slow-gpu"


@pytest.fixture(scope="module")
def true_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """By step, of the same job on this machine, without faults or interruptions."""
    return undisturbed_losses(tmp_path_factory.mktemp("reference"), STEPS)


@pytest.fixture
def name(jobs: Cluster, mode: str) -> Iterator[str]:
    """Of the job; it and its traces on the nodes are gone afterwards."""
    name = f"gpt-{mode.lower().removesuffix('node')}"
    with gone_afterwards(jobs, name):
        yield name
    if TAINT in taints(jobs, "node2"):
        jobs.kubectl("taint", "node", "node2", f"{TAINT}:NoSchedule-")
    jobs.kubectl("annotate", "node", "node2", f"{TAINT}-")


def start_on_a_node_that_becomes_slow(jobs: Cluster, name: str, mode: str) -> str:
    """Run the job on node1 and node2. Returns the third node, for the next attempt."""
    third = sorted(node["metadata"]["name"] for node in jobs.list("nodes"))[-1]
    remediation = {"mode": mode, "cooldownSeconds": 60}
    jobs.kubectl("cordon", third)
    try:
        jobs.apply(
            *training_job(name, STEPS, slow=("node2", SLOW_FROM), remediation=remediation, ttlSecondsAfterFinished=30)
        )
        wait_phase(jobs, name, "Running", 300)
    finally:
        jobs.kubectl("uncordon", third)
    assert nodes_of(jobs, name) == {"node1", "node2"}
    return third


def scraped(monitors: Monitoring, release: Release) -> set[str]:
    """Components of the release. Kubelets look after Secrets each minute or so: Prometheus and Alertmanager get to know
    a new release no sooner."""
    return {found["component"] for found in monitors.series(f'up{{namespace="{release.name}"}} == 1')}


@pytest.mark.parametrize("mode", ["ExcludeNode", "Taint"])
def test_a_job_leaves_a_slow_node_and_goes_on_from_its_checkpoint(
    jobs: Cluster, release: Release, monitors: Monitoring, true_losses: dict[int, float], mode: str, name: str
) -> None:
    logs = Logs(jobs, name)
    wait_until("all components are scraped", lambda: scraped(monitors, release) >= COMPONENTS, 180)
    wait_until("the gateway is told", lambda: f"{release.name}/{release.prefix}/gateway" in monitors.receivers(), 180)
    third = start_on_a_node_that_becomes_slow(jobs, name, mode)
    expected = ranks_on(jobs, name, "node2")
    wait_until("traces arrive", lambda: status(jobs, name).get("progress"), 400)

    blamed, pages = watched_until_left(jobs, monitors, name, logs)

    assert blamed["node"] == "node2"
    assert set(blamed["slowRanks"]) <= expected
    if mode == "Taint":
        wait_until("the node is tainted", lambda: TAINT in taints(jobs, "node2"), 30)
        node = jobs.get("node", "node2") or {}
        assert ("SlowGPU", "True") in {(found["type"], found["status"]) for found in node["status"]["conditions"]}
    logs.wait_until("the next attempt", lambda: status(jobs, name)["attempt"] == 2, 300)
    logs.wait_until("it runs", lambda: phase(jobs, name) == "Running", 300)
    assert nodes_of(jobs, name) == {"node1", third}
    logs.wait_until("Alertmanager has the page", lambda: paged(monitors, name, pages), 60)
    logs.wait_until("people are told once", lambda: [i["node"] for i in incidents(release, name)] == ["node2"], 90)

    logs.wait_until("it is done", lambda: phase(jobs, name) in {"Succeeded", "Failed"}, 900)
    told = status(jobs, name)
    assert conditions(told)["Complete"] == ("True", "Completed"), told
    assert (told["attempt"], told["restarts"]) == (2, 0)
    first, second = logs.by_attempt[1], logs.by_attempt[2]
    assert SLOW_FROM < min(second) <= logs.reached(1) + 1
    assert logs.reached(2) == STEPS
    for step, loss in {**first, **second}.items():
        assert loss == pytest.approx(true_losses[step], rel=1e-5), f"step {step}"
    wait_until("its time to live is over", lambda: not jobs.get("job", f"{name}-2"), 60)


def watched_until_left(
    jobs: Cluster, monitors: Monitoring, name: str, logs: Logs
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What the status said of slow ranks, and the labels of all alerts, until the job leaves a node."""
    blamed: dict[str, Any] = {}
    pages: list[dict[str, str]] = []

    def left() -> bool:
        told = status(jobs, name)
        blamed.update(told.get("findings") or {})
        paged(monitors, name, pages)
        assert told["phase"] not in {"Failed", "Succeeded"}, told
        return bool(told.get("excludedNodes"))

    logs.wait_until("the node is left", left, 600)
    return blamed, pages


def paged(monitors: Monitoring, name: str, pages: list[dict[str, str]]) -> bool:
    """Whether Alertmanager has been told of the slow node, now or before."""
    pages += [alert["labels"] for alert in monitors.alerts() if alert["labels"].get("training_job") == name]
    return any((page["alertname"], page.get("node")) == ("SlowGPU", "node2") for page in pages)


def incidents(release: Release, name: str) -> list[dict[str, Any]]:
    """What the gateway was told of by Alertmanager's webhook."""
    headers = {"Authorization": f"Bearer {release.secret('auth', 'viewer-token')}"}
    with release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address:
        answer = httpx.get(f"http://{address}/api/v1/incidents", headers=headers, timeout=30)
    found: list[dict[str, Any]] = answer.raise_for_status().json()
    return [incident for incident in found if incident["training_job"] == name]


def ranks_on(jobs: Cluster, name: str, node: str) -> set[int]:
    """Two ranks a pod, numbered by the pods' indexes."""
    found = [pod["metadata"]["labels"] for pod in pods(jobs, name) if pod["spec"].get("nodeName") == node]
    first = 2 * int(found[0]["batch.kubernetes.io/job-completion-index"])
    return {first, first + 1}


def taints(jobs: Cluster, node: str) -> set[str]:
    found = jobs.get("node", node) or {}
    return {taint["key"] for taint in found["spec"].get("taints", ())}
