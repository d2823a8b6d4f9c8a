"""The operator is killed at every write, and the API server answers wrong: the end is always the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.conftest import operator_for
from tests.e2e.kubernetes.jobs import FAIL_FIRST, conditions, job, status, wait_phase
from tests.support.cluster import Cluster, OperatorProcess, wait_until
from tests.support.proxy import ApiProxy, Faults

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

MAX_WRITES = 40
"""More than the story takes."""


def story(cluster: Cluster, name: str) -> None:
    """An attempt fails, the next one does all the work."""
    cluster.apply(two_attempts(name))
    wait_phase(cluster, name, "Succeeded", 120)


def two_attempts(name: str) -> dict[str, Any]:
    return job(name, FAIL_FIRST, failurePolicy={"backoffSeconds": 1})


def end(cluster: Cluster, name: str) -> dict[str, Any]:
    """What all tellings of the story must agree on."""
    told = status(cluster, name)
    mine = f"megatronapp.io/training-job={name}"
    return {
        "phase": told["phase"],
        "attempt": told["attempt"],
        "restarts": told["restarts"],
        "conditions": conditions(told),
        "jobs": [found["metadata"]["name"].removeprefix(name) for found in cluster.list("jobs", mine)],
        "services": [found["metadata"]["name"].removeprefix(name) for found in cluster.list("services", mine)],
    }


def settled(cluster: Cluster, name: str, expected: dict[str, Any]) -> bool:
    return end(cluster, name) == expected


@pytest.fixture
def calm_end(cluster: Cluster, operator: OperatorProcess) -> dict[str, Any]:
    """How the story ends when nothing goes wrong."""
    story(cluster, "calm")
    wait_until("the first attempt is cleared away", lambda: len(end(cluster, "calm")["jobs"]) == 1)
    operator.stop()
    return end(cluster, "calm")


def test_a_kill_at_any_write_changes_nothing_in_the_end(
    cluster: Cluster, calm_end: dict[str, Any], tmp_path: Path
) -> None:
    """The server does each write; at write k the operator is killed before it hears of it."""
    with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
        operator = operator_for(Cluster(proxy.own_kubeconfig, cluster.namespace), tmp_path)
        operator.start()
        operator.wait_ready()
        for at in range(1, MAX_WRITES):
            if not _killed_at(at, proxy, operator, cluster, calm_end):
                break
        assert operator.stop() == 0

    assert 8 <= at < MAX_WRITES


def _killed_at(at: int, proxy: ApiProxy, operator: OperatorProcess, cluster: Cluster, calm_end: dict[str, Any]) -> bool:
    """Tell the story with a kill at write `at`; False when it takes fewer writes."""
    name = f"kill-{at}"
    proxy.writes, proxy.on_write = 0, _killing(operator, at)
    cluster.apply(two_attempts(name))
    wait_until("killed, or done", lambda: not operator.alive() or is_done(cluster, name), 120)
    time.sleep(1.0)  # for the last write, which is an Event
    proxy.on_write = None
    killed = not operator.alive()
    if killed:
        cluster.kubectl("delete", "lease", "megatronapp-operator")
        operator.start()
    wait_phase(cluster, name, "Succeeded", 120)
    wait_until("all is as without the kill", lambda: settled(cluster, name, calm_end), 30)
    cluster.kubectl("delete", "trainingjob", name, "--wait=false")
    return killed


def _killing(operator: OperatorProcess, at: int) -> Any:
    def on_write(number: int) -> bool:
        if number == at:
            operator.kill()
        return number == at

    return on_write


def is_done(cluster: Cluster, name: str) -> bool:
    return status(cluster, name).get("phase") == "Succeeded" and len(end(cluster, name)["jobs"]) == 1


@pytest.fixture
def stormy(cluster: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    """Errors, late answers, and watches that end, some with "410 Gone"."""
    faults = Faults(seed=7, error_ratio=0.25, watch_seconds=4.0, latency_seconds=0.2)
    with ApiProxy(cluster.kubeconfig, tmp_path, faults) as proxy:
        yield proxy


def test_a_server_that_answers_wrong_changes_nothing_in_the_end(
    cluster: Cluster, calm_end: dict[str, Any], stormy: ApiProxy, tmp_path: Path
) -> None:
    operator = operator_for(Cluster(stormy.own_kubeconfig, cluster.namespace), tmp_path)
    operator.start()
    try:
        names = [f"storm-{number}" for number in range(4)]
        for name in names:
            cluster.apply(two_attempts(name))
        for name in names:
            wait_phase(cluster, name, "Succeeded", 240)
            wait_until("all is as in calm weather", lambda name=name: settled(cluster, name, calm_end), 60)
    finally:
        operator.kill()


def test_a_job_at_rest_costs_the_server_nothing(cluster: Cluster, tmp_path: Path) -> None:
    with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
        operator = operator_for(Cluster(proxy.own_kubeconfig, cluster.namespace), tmp_path)
        operator.start()
        operator.wait_ready()
        cluster.apply(job("rest"))
        wait_phase(cluster, "rest", "Running")
        wait_until("it has come to rest", lambda: _quiet(proxy), 30, 2.0)
        before, looks = proxy.seen.copy(), _looks(operator)

        for value in ("a", "b", "c"):
            cluster.kubectl("label", "job", "rest-1", f"looked={value}", "--overwrite")
        wait_until("it has looked again", lambda: _looks(operator) > looks)
        _quiet(proxy)

        assert proxy.seen - before == {}
        assert operator.stop() == 0


def _looks(operator: OperatorProcess) -> float:
    """How often it has looked at a job."""
    return operator.metric("megatronapp_operator_reconcile_seconds_count") or 0.0


def _quiet(proxy: ApiProxy) -> bool:
    before = proxy.seen.copy()
    time.sleep(2.0)
    return proxy.seen == before
