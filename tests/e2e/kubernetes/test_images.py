"""The images are slim: what each adds to its base stays within a budget, and nothing in it builds or installs. The
trainer's has the native parts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import images
from tests.support.cluster import PYTHON_IMAGE, Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

BUDGET_MEGABYTES = {"operator": 112, "detector": 101, "scope-gateway": 125, "trace-collector": 182}
"""Over the base. The collector has Arrow for its Parquet files (75 MB), the gateway Perfetto's page (15 MB)."""


@pytest.mark.parametrize("service", BUDGET_MEGABYTES)
def test_an_image_adds_no_more_than_its_budget(whole_cluster: Cluster, service: str) -> None:
    base, size = images.megabytes(PYTHON_IMAGE), images.megabytes(images.image(service))
    if base is None or size is None:
        pytest.skip(f"{images.image(service)} was not built here")

    added = size - base
    print(f"{service}: {size:.0f} MB, {added:.0f} over its base of {base:.0f}")

    assert added <= BUDGET_MEGABYTES[service]


@pytest.mark.parametrize("service", BUDGET_MEGABYTES)
def test_an_image_runs_its_service_and_has_nothing_to_install_with(cluster: Cluster, service: str) -> None:
    name = images.image(service)
    if not images.built(name):
        pytest.skip(f"{name} was not built here")
    images.provide_service(cluster, service)

    assert "--http-port" in said(cluster, name, "help", args=["--help"])
    assert said(cluster, name, "look", command=["python", "-c", LOOK]).split() == ["nothing"]


def test_the_trainers_image_has_the_native_parts(cluster: Cluster) -> None:
    name = images.image("trainer")
    if not images.built(name):
        pytest.skip(f"{name} was not built here")
    images.provide_service(cluster, "trainer")

    lanes = said(cluster, name, "lanes", command=["python", "-m", "megatronapp.rdma", "doctor", "--no-speed"])
    recorder = said(
        cluster, name, "recorder", command=["python", "-c", "import megatronapp.scan._native as n; print(n)"]
    )

    assert re.findall(r"^ok +lane (\w+)", lanes, re.MULTILINE) == ["shm", "ucx", "tcp"]
    assert "_native" in recorder


LOOK = """
from importlib.util import find_spec
from pathlib import Path
files = Path("/opt/megatronapp").rglob("*")
print(*(name for name in ("pip", "setuptools") if find_spec(name) and "/opt/" in find_spec(name).origin))
print(*(path for path in files if path.name == "tests" or path.suffix in {".pyx", ".c", ".h"}))
print("nothing")
"""


def said(cluster: Cluster, image: str, name: str, **container: Any) -> str:
    """By a pod of the image."""
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shared = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    only = {"name": name, "image": image, "imagePullPolicy": "Never", "securityContext": own, **container}
    spec = {"restartPolicy": "Never", "securityContext": shared, "containers": [only]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    wait_until("it has ended", lambda: (cluster.get("pod", name) or {})["status"]["phase"] in {"Succeeded", "Failed"})
    return cluster.kubectl("logs", name)
