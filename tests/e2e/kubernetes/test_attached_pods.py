"""Somebody's own Job, to which the documentation's example adds what attaches: no TrainingJob, no operator."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from tests.support.cluster import ROOT, Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

EXAMPLE = ROOT / "examples/attach/indexed-job.yaml"
NAME, STEPS = "llama", 60
CHECKPOINTS = ["--save-interval=10", "--load=/checkpoints", "--save=/checkpoints"]
SCRIPT = [f"--steps={STEPS}", f"--slow-from={STEPS}", *CHECKPOINTS]


def own_job(namespace: str, collector: str, image: str, run: str) -> list[dict[str, Any]]:
    """The example, filled in as its first lines and the documentation say, with a script and an image that are here."""
    text = EXAMPLE.read_text().replace("THIS_RUN", run).replace("team/llama", f"{namespace}/{NAME}")
    text = re.sub(r"megatronapp-collector-0\.\S+:7601", collector, text)
    text = re.sub(r"registry\.example\.com/\S+", image, text)
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    [training] = pod["containers"]
    launcher = [flag.replace("per-node=8", "per-node=2") for flag in training["command"]]
    training["command"] = ["python", "-m", "torch.distributed.run", *launcher[1:]]
    training["args"] = [training["args"][0], "train.py", *SCRIPT]
    training["env"] += [{"name": "NODE", "value": "any"}, {"name": "SLOW_NODE", "value": "none"}]
    pod["volumes"][0] = {"name": "checkpoints", "emptyDir": {}}
    return [service, job]


@pytest.fixture
def run(jobs: Cluster, release: Release, users_image: str) -> Iterator[str]:
    """That it was started as."""
    run = str(uuid.uuid4())
    collector = f"{release.prefix}-collector-0.{release.prefix}-collector.{release.name}.svc:7601"
    jobs.apply(*own_job(jobs.namespace, collector, users_image, run))
    yield run
    jobs.kubectl("delete", "job/llama-1", "service/llama", "--wait=false")


def seen(release: Release, run: str) -> dict[str, Any]:
    """The job, as the page gets it; empty while it is not known."""
    headers = {"Authorization": f"Bearer {release.secret('auth', 'viewer-token')}"}
    with release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address:
        answer = httpx.get(f"http://{address}/api/v1/jobs/{run}", headers=headers, timeout=30)
    if answer.status_code == httpx.codes.NOT_FOUND:
        return {}
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def succeeded(jobs: Cluster) -> bool:
    told = (jobs.get("job", "llama-1") or {})["status"]
    assert not told.get("failed"), jobs.kubectl("logs", "-l", "job-name=llama-1", "-c", "training", "--tail=30")
    return told.get("succeeded") == 2


def test_a_job_of_somebodys_own_is_seen_with_its_steps_and_ends_as_it_would(
    jobs: Cluster, release: Release, run: str
) -> None:
    wait_until("it has ended", lambda: succeeded(jobs), 600, 2.0)

    wait_until("its last step is seen", lambda: seen(release, run).get("step") == STEPS, 60, 2.0)
    told = seen(release, run)
    assert (told["job"], told["attempt"], told["attached"]) == (f"{jobs.namespace}/{NAME}", 1, "steps")
    assert told["sizes"]["world"] == 4
