"""The whole way: install the chart, train on two nodes, one of which becomes slow, and see the job leave it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.jobs import conditions, nodes_of, phase, status, wait_phase
from tests.support.cluster import ROOT, Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(2400)]

EXAMPLE = ROOT / "examples/k8s/gpt-tiny.yaml"
IMAGES = ("trainer", "trace-collector", "detector", "scope-gateway", "operator")
SLOW_FROM = 41
STEPS = 140
OWN_FLAGS = re.compile(r"--(train-iters|save-interval|log-interval)=")


def training_job(name: str, slow_node: str = "", **spec: Any) -> list[dict[str, Any]]:
    """The example and its claim; a node may be slow from step SLOW_FROM on."""
    claim, example = yaml.safe_load_all(EXAMPLE.read_text())
    found = json.loads(json.dumps(example["spec"]).replace("gpt-tiny-checkpoints", f"{name}-checkpoints"))
    if slow_node:
        fault = {"kind": "slow_compute", "node": slow_node, "from_step": SLOW_FROM, "effect_ratio": 2.0}
        found["plugins"]["faults"] = {"scenario": {"faults": [fault]}}
    found["args"] = [flag for flag in found["args"] if not OWN_FLAGS.match(flag)]
    found["args"] += [f"--train-iters={STEPS}", "--save-interval=1000", "--log-interval=1"]
    return [
        {**claim, "metadata": {"name": f"{name}-checkpoints"}},
        {**example, "metadata": {"name": name}, "spec": {**found, **spec}},
    ]


@pytest.fixture(scope="module")
def jobs(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The namespace that jobs run in."""
    missing = [image for image in IMAGES if not whole_cluster.has_image(f"docker.io/megatronapp/{image}:0.1.0")]
    if missing:
        pytest.skip(f"the nodes have no image of {', '.join(missing)}: make images, and load them")
    with whole_cluster.fresh_namespace("journey-jobs") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def release(whole_cluster: Cluster, jobs: Cluster) -> Iterator[Release]:
    """The chart, installed with as little as it needs."""
    with Release.installed(whole_cluster, "journey", jobs.namespace) as release:
        yield release


@pytest.fixture(scope="module")
def true_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """By step, of the same job on this machine, without faults or interruptions."""
    folder = tmp_path_factory.mktemp("reference")
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(training_job("reference")[1]))
    (folder / "checkpoints").mkdir()
    command = [str(Path(sys.executable).parent / "megatronapp"), "run", str(file), "--folder", str(folder)]
    command += ["--storage", f"checkpoints={folder / 'checkpoints'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return losses(done.stdout)


def losses(text: str) -> dict[int, float]:
    """What the last rank logged, by step."""
    lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return {line["step"]: line["loss"] for line in lines if line.get("event") == "step"}


class Logs:
    """Losses by attempt, read while the pods are there."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self.by_attempt: dict[int, dict[int, float]] = {}

    def read(self) -> bool:
        for pod in self._cluster.list("pods", f"megatronapp.io/training-job={self._name}"):
            attempt = int(pod["metadata"]["labels"]["megatronapp.io/attempt"])
            try:
                text = self._cluster.kubectl("logs", pod["metadata"]["name"], "--tail=-1")
            except subprocess.CalledProcessError:
                continue
            self.by_attempt.setdefault(attempt, {}).update(losses(text))
        return True


@pytest.mark.parametrize("mode", ["ExcludeNode", "Taint"])
def test_a_job_leaves_a_slow_node_and_goes_on_from_its_checkpoint(
    jobs: Cluster, release: Release, true_losses: dict[int, float], mode: str
) -> None:
    name = f"gpt-{mode.lower().removesuffix('node')}"
    logs = Logs(jobs, name)
    third = sorted({"node1", "node2", "node3"})[-1]
    spec = {"remediation": {"mode": mode, "cooldownSeconds": 60}, "ttlSecondsAfterFinished": 30}
    jobs.kubectl("cordon", third)
    try:
        jobs.apply(*training_job(name, "node2", **spec))
        wait_phase(jobs, name, "Running", 300)
    finally:
        jobs.kubectl("uncordon", third)
    assert nodes_of(jobs, name) == {"node1", "node2"}
    wait_until("traces arrive", lambda: status(jobs, name).get("progress"), 400)

    blamed: dict[str, Any] = {}

    def left() -> bool:
        told = status(jobs, name)
        blamed.update(told.get("findings") or {})
        logs.read()
        assert told["phase"] not in {"Failed", "Succeeded"}, told
        return bool(told.get("excludedNodes"))

    wait_until("the node is left", left, 600, 1.0)
    assert blamed["node"] == "node2"
    assert blamed["slowRanks"]
    if mode == "Taint":
        node = jobs.get("node", "node2") or {}
        assert "megatronapp.io/slow-gpu" in {taint["key"] for taint in node["spec"].get("taints", ())}
        assert "SlowGPU" in {found["type"] for found in node["status"]["conditions"]}

    wait_until("the next attempt", lambda: logs.read() and status(jobs, name)["attempt"] == 2, 300, 1.0)
    wait_phase(jobs, name, "Running", 300)
    assert nodes_of(jobs, name) == {"node1", third}

    wait_until("it is done", lambda: logs.read() and phase(jobs, name) in {"Succeeded", "Failed"}, 600, 1.0)
    told = status(jobs, name)
    assert conditions(told)["Complete"] == ("True", "Completed"), told
    assert (told["attempt"], told["restarts"]) == (2, 0)
    first, second = logs.by_attempt[1], logs.by_attempt[2]
    assert min(second) == max(first) + 1 or min(second) > SLOW_FROM
    for step, loss in {**first, **second}.items():
        assert loss == pytest.approx(true_losses[step], rel=1e-3), f"step {step}"
    wait_until("its time to live is over", lambda: not jobs.get("job", f"{name}-2"), 60)
    _forget(jobs, name)


def _forget(jobs: Cluster, name: str) -> None:
    jobs.kubectl("delete", "trainingjob", name, "--wait=false")
    node = jobs.get("node", "node2") or {}
    if any(taint["key"] == "megatronapp.io/slow-gpu" for taint in node["spec"].get("taints", ())):
        jobs.kubectl("taint", "node", "node2", "megatronapp.io/slow-gpu:NoSchedule-")


def test_the_operator_used_each_of_its_rights_and_missed_none(jobs: Cluster, release: Release) -> None:
    """What the audit log shows equals what the chart grants; jobs before this one have been through all of it."""
    if not jobs.is_test_cluster:
        pytest.skip("no audit log at hand")
    account = f"system:serviceaccount:{release.cluster.namespace}:{release.name}-megatronapp-operator"
    used, refused = used_rights(jobs.kubeconfig.parent / "log" / "audit.jsonl", account)

    granted = granted_rights(jobs, f"{release.name}-megatronapp-operator")

    assert refused == set()
    assert granted - used == set()


def used_rights(audit: Path, account: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(resource, verb) of the account's requests that were allowed, and of those that were not."""
    used, refused = set(), set()
    for line in audit.read_text().splitlines():
        event = json.loads(line) if account in line else {}
        about = event.get("objectRef")
        if about and event["user"]["username"] == account:
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            allowed = event["annotations"].get("authorization.k8s.io/decision") == "allow"
            (used if allowed else refused).add((resource, event["verb"]))
    return used, refused


def granted_rights(cluster: Cluster, name: str) -> set[tuple[str, str]]:
    """(resource, verb) of all roles of the operator, wherever they are."""
    found = json.loads(cluster.kubectl("get", "roles,clusterroles", "-A", "-o", "json"))["items"]
    rules = [rule for role in found if name in role["metadata"]["name"] for rule in role.get("rules") or ()]
    return {(what, verb) for rule in rules for what in rule.get("resources", ()) for verb in rule["verbs"]}
