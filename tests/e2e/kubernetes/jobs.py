"""TrainingJobs whose pods run a few lines of Python: all of a job's life without waiting for torch."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster import PYTHON_IMAGE, Cluster, wait_until

SLEEP = "import time; time.sleep(3600)"
GRACEFUL = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(3600)"
FAIL_FIRST = 'import os, sys; sys.exit(1 if os.environ["MEGATRONAPP_ATTEMPT"] == "1" else 0)'

FIND_EACH_OTHER = """
import os, socket, time
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        socket.getaddrinfo(os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"]))
        break
    except OSError:
        time.sleep(0.5)
else:
    raise SystemExit("the first pod has no name")
time.sleep(10)
"""


def job(name: str, script: str = SLEEP, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "image": PYTHON_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c"],
            "args": [script],
            "nodes": 2,
            "procPerNode": 1,
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
            "sharedMemory": {"size": "16Mi"},
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    # Of the status alone: a spec may be too deep for Python.
    found = cluster.kubectl("get", "trainingjob", name, "--ignore-not-found", "-o", "jsonpath={.status}")
    reported: dict[str, Any] = json.loads(found) if found.strip() else {}
    return reported


def phase(cluster: Cluster, name: str) -> str:
    return str(status(cluster, name).get("phase", ""))


def wait_phase(cluster: Cluster, name: str, wanted: str, seconds: float = 90.0) -> dict[str, Any]:
    wait_until(f"{name} is {wanted}, not {phase(cluster, name)}", lambda: phase(cluster, name) == wanted, seconds)
    return status(cluster, name)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {found["type"]: (found["status"], found["reason"]) for found in status.get("conditions", ())}


def message(status: dict[str, Any], kind: str) -> str:
    return next(found["message"] for found in status["conditions"] if found["type"] == kind)


def pods(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    return cluster.list("pods", f"megatronapp.io/training-job={name}")


def nodes_of(cluster: Cluster, name: str) -> set[str]:
    """Nodes on which the job's pods run or wait to end."""
    return {
        pod["spec"].get("nodeName", "")
        for pod in pods(cluster, name)
        if pod["status"]["phase"] in {"Pending", "Running"}
    }
