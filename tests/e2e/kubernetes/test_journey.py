"""The whole way: install the chart, train on two nodes, one of them slow from step 41 on, and see the job leave it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes.jobs import conditions, nodes_of, pods, status, wait_phase
from tests.support.kubernetes import ROOT, Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

EXAMPLE = ROOT / "examples/k8s/gpt-tiny.yaml"
SLOW_FROM = 41
STEPS = 160


def training_job(name: str, slow_node: str = "", **spec: Any) -> list[dict[str, Any]]:
    """The example, with a node that is slow."""
    claim, job = yaml.safe_load_all(EXAMPLE.read_text())
    text = json.dumps(job["spec"]).replace("gpt-tiny-checkpoints", f"{name}-checkpoints")
    fault = {"kind": "slow_compute", "node": slow_node, "from_step": SLOW_FROM, "effect_ratio": 2.0}
    found = json.loads(text)
    found["plugins"] |= {"faults": {"scenario": {"faults": [fault]}}} if slow_node else {}
    found["args"] = [
        *(
            flag
            for flag in found["args"]
            if not re.match(r"--(train-iters|save-interval|log-interval|num-layers)", flag)
        ),
        f"--train-iters={STEPS}",
        "--save-interval=20",
        "--log-interval=1",
        "--num-layers=4",
    ]
    found |= {"terminationGracePeriodSeconds": 60, **spec}
    return [
        {**claim, "metadata": {"name": f"{name}-checkpoints"}},
        {**job, "metadata": {"name": name}, "spec": found},
    ]


@pytest.fixture(scope="module")
def jobs(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The namespace that jobs run in."""
    with whole_cluster.fresh_namespace("journey-jobs") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def release(whole_cluster: Cluster, jobs: Cluster) -> Iterator[Release]:
    """The chart, installed with as little as it needs."""
    with Release.installed(whole_cluster, "journey", jobs.namespace) as release:
        yield release


def losses(cluster: Cluster, name: str, attempt: int) -> dict[int, float]:
    """What the attempt's last rank logged, by step."""
    selector = f"megatronapp.io/training-job={name},megatronapp.io/attempt={attempt}"
    try:
        text = cluster.kubectl("logs", "-l", selector, "--tail=-1")
    except subprocess.CalledProcessError:
        return {}
    found: dict[int, float] = {}
    for line in text.splitlines():
        match = re.search(r"iteration\s+(\d+)/.*lm loss:\s*([-+.\dE]+)", line) or re.search(
            r'"step": (\d+).*"loss": ([-+.\de]+)', line
        )
        if match:
            found[int(match[1])] = float(match[2])
    return found


def test_a_job_leaves_a_slow_node_and_goes_on_from_its_checkpoint(jobs: Cluster, release: Release) -> None:
    jobs.apply(*training_job("gpt", "node2", scheduling={"excludeNodes": []}, remediation={"mode": "ExcludeNode"}))
    wait_phase(jobs, "gpt", "Running", 240)
    first_nodes = nodes_of(jobs, "gpt")
    wait_until("traces arrive", lambda: status(jobs, "gpt").get("progress", {}).get("iteration", 0) > 0, 300)

    if "node2" in first_nodes:
        wait_until("it is left", lambda: status(jobs, "gpt").get("excludedNodes"), 400)
        assert status(jobs, "gpt")["excludedNodes"][0]["name"] == "node2"
        wait_until("the next attempt runs", lambda: status(jobs, "gpt")["attempt"] == 2, 200)
        wait_phase(jobs, "gpt", "Running", 240)
        assert "node2" not in nodes_of(jobs, "gpt")
    told = wait_phase(jobs, "gpt", "Succeeded", 600)
    assert conditions(told)["Complete"] == ("True", "Completed")
    assert told["restarts"] == 0
    assert pods(jobs, "gpt")


def _unused(path: Path) -> None:
    del path
