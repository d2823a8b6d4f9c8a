"""Real training on the cluster: the example of the documentation, two pipeline stages by two replicas in two pods."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import ROOT, Cluster, wait_until

EXAMPLE = ROOT / "examples/k8s/gpt-tiny.yaml"
OWN_FLAGS = re.compile(r"--(train-iters|save-interval|log-interval)=")


def training_job(name: str, steps: int, *, slow: tuple[str, int] | None = None, **spec: Any) -> list[dict[str, Any]]:
    """The example and its claim. `slow` names a node and the step from which it takes twice as long."""
    claim, example = yaml.safe_load_all(EXAMPLE.read_text())
    found = json.loads(json.dumps(example["spec"]).replace("gpt-tiny-checkpoints", f"{name}-checkpoints"))
    if slow is not None:
        fault = {"kind": "slow_compute", "node": slow[0], "from_step": slow[1], "effect_ratio": 2.0}
        found["plugins"]["faults"] = {"scenario": {"faults": [fault]}}
    found["args"] = [flag for flag in found["args"] if not OWN_FLAGS.match(flag)]
    found["args"] += [f"--train-iters={steps}", f"--save-interval={spec.pop('save_interval', 1000)}"]
    found["args"] += ["--log-interval=1"]
    return [
        {**claim, "metadata": {"name": f"{name}-checkpoints"}},
        {**example, "metadata": {"name": name}, "spec": {**found, **spec}},
    ]


def undisturbed_losses(folder: Path, steps: int) -> dict[int, float]:
    """By step, of the same job on this machine."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(training_job("reference", steps)[1]))
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
    """Losses by attempt, read while the pods are there: they may be gone before a test has waited for other things."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self.by_attempt: dict[int, dict[int, float]] = {}

    def wait_until(self, what: str, condition: Callable[[], object], timeout_seconds: float) -> None:
        """Like the function of that name, and read meanwhile, once more when it holds."""

        def read_and_ask() -> object:
            self.read()
            return condition()

        wait_until(what, read_and_ask, timeout_seconds, 1.0)
        self.read()

    def read(self) -> None:
        for pod in self._cluster.list("pods", f"megatronapp.io/training-job={self._name}"):
            attempt = int(pod["metadata"]["labels"]["megatronapp.io/attempt"])
            try:
                text = self._cluster.kubectl("logs", pod["metadata"]["name"], "--tail=-1")
            except subprocess.CalledProcessError:
                continue
            self.by_attempt.setdefault(attempt, {}).update(losses(text))

    def reached(self, attempt: int) -> int:
        """The last step that is known of an attempt."""
        return max(self.by_attempt.get(attempt, ()), default=0)


@contextmanager
def gone_afterwards(cluster: Cluster, name: str) -> Iterator[None]:
    """What is left of a job would compete with the next test for the processor."""
    try:
        yield
    finally:
        cluster.kubectl("delete", "trainingjob", name, "--ignore-not-found", "--wait=false")
        wait_until(
            "its pods are gone", lambda: not cluster.list("pods", f"megatronapp.io/training-job={name}"), 180, 1.0
        )
