"""`spec.attach`: somebody's own image and command, of which the platform sees the steps, names the slow node and starts
the next attempt elsewhere; the script's own checkpoint brings it back to where it was."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from tests.e2e.kubernetes.jobs import conditions, nodes_of, phase, status, wait_phase
from tests.e2e.kubernetes.training import gone_afterwards
from tests.support.cluster import Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(2400, func_only=True)]

NAME, SLOW_NODE, SLOW_FROM, STEPS = "own-image", "node2", 61, 200
LINE = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def attached_job(image: str) -> list[dict[str, Any]]:
    script = ["train.py", f"--steps={STEPS}", f"--slow-from={SLOW_FROM}", "--save-interval=10"]
    spec = {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "attach": True,
        "command": ["python", "-m", "torch.distributed.run"],
        "args": [*script, "--load=/checkpoints", "--save=/checkpoints"],
        "nodes": 2,
        "procPerNode": 2,
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}},
        "sharedMemory": {"size": "64Mi"},
        "remediation": {"mode": "ExcludeNode", "cooldownSeconds": 60},
        "storage": [{"name": "checkpoints", "claimName": f"{NAME}-checkpoints", "mountPath": "/checkpoints"}],
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "SLOW_NODE", "value": SLOW_NODE},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    }
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{NAME}-checkpoints"},
            "spec": claim,
        },
        {"apiVersion": "megatronapp.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": NAME}, "spec": spec},
    ]


class Printed:
    """Losses of each attempt by step, as the script prints them; read while the pods are there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_attempt: dict[int, dict[int, float]] = {}

    def wait_until(self, what: str, condition: Any, seconds: float) -> None:
        wait_until(what, lambda: (self.read(), condition())[1], seconds, 1.0)
        self.read()

    def read(self) -> None:
        for pod in self._cluster.list("pods", f"megatronapp.io/training-job={NAME}"):
            attempt = int(pod["metadata"]["labels"]["megatronapp.io/attempt"])
            try:
                text = self._cluster.kubectl("logs", pod["metadata"]["name"], "-c", "trainer", "--tail=-1")
            except subprocess.CalledProcessError:
                continue
            self.by_attempt.setdefault(attempt, {}).update(
                (int(step), float.fromhex(loss)) for step, loss in LINE.findall(text)
            )


def test_an_image_without_a_word_of_ours_is_seen_leaves_a_slow_node_and_resumes_by_its_own_flags(
    jobs: Cluster, release: Release, users_image: str
) -> None:
    printed = Printed(jobs)
    third = sorted(node["metadata"]["name"] for node in jobs.list("nodes"))[-1]
    with gone_afterwards(jobs, NAME):
        jobs.kubectl("cordon", third)
        try:
            jobs.apply(*attached_job(users_image))
            wait_phase(jobs, NAME, "Running", 300)
        finally:
            jobs.kubectl("uncordon", third)
        assert nodes_of(jobs, NAME) == {"node1", SLOW_NODE}
        printed.wait_until("progress is seen", lambda: (status(jobs, NAME).get("progress") or {}).get("iteration"), 400)

        printed.wait_until("the slow node is left", lambda: status(jobs, NAME).get("excludedNodes"), 900)
        printed.wait_until("the next attempt runs", lambda: status(jobs, NAME)["attempt"] == 2, 300)
        assert [found["name"] for found in status(jobs, NAME)["excludedNodes"]] == [SLOW_NODE]
        printed.wait_until("it is done", lambda: phase(jobs, NAME) in {"Succeeded", "Failed"}, 900)

        told = status(jobs, NAME)
    assert conditions(told)["Complete"] == ("True", "Completed"), told
    assert (told["attempt"], told["restarts"]) == (2, 0)
    first, second = printed.by_attempt[1], printed.by_attempt[2]
    assert SLOW_FROM < min(second) <= max(first) + 1
    assert max(second) == STEPS
    again = sorted(first.keys() & second.keys())
    assert [second[step].hex() for step in again] == [first[step].hex() for step in again]
