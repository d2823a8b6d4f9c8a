"""The platform's images on the test cluster's nodes: loaded, and built before where they were not.

What can't be pulled there is made of Debian packages: images of the same names with the same programs in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cluster import PYTHON_IMAGE, ROOT, TEST_CLUSTER, Cluster

VERSION = "0.1.0"
SERVICES = ("trainer", "trace-collector", "detector", "scope-gateway", "operator")
NODE_IMAGE, REDIS_IMAGE = "docker.io/library/node:20-slim", "docker.io/valkey/valkey:8.1"
STAND_INS: dict[str, tuple[str, Sequence[str]]] = {
    PYTHON_IMAGE: ("bookworm", ("python3", "python3-venv", "python3-pip")),
    NODE_IMAGE: ("trixie", ("nodejs", "npm")),
    REDIS_IMAGE: ("trixie", ("valkey-server",)),
}
MONITORING = {
    "docker.io/prom/prometheus:v3.13.5": "quay.io/prometheus/prometheus:v3.13.5",
    "docker.io/prom/alertmanager:v0.33.1": "quay.io/prometheus/alertmanager:v0.25.0",
}
"""What compose names, and what the test cluster has."""
BUILD_FLAGS = {
    # Of the wheels at hand, where there are any: else every CUDA library comes along.
    "trainer": ("--build-arg", "TORCH_INDEX_URL=") if os.environ.get("PIP_FIND_LINKS") else (),
    "scope-gateway": ("--build-arg", "NPM_FLAGS=--engine-strict=false"),
}


def image(service: str) -> str:
    return f"docker.io/megatronapp/{service}:{VERSION}"


def missing(cluster: Cluster) -> list[str]:
    """Names of images that the platform needs and some node has not."""
    return [name for name in (*map(image, SERVICES), REDIS_IMAGE) if not cluster.has_image(name)]


def provide(cluster: Cluster) -> None:
    """Put them on the test cluster's nodes. What podman has is loaded as it is: `make images` makes it anew."""
    for name in STAND_INS:
        provide_stand_in(cluster, name)
    for service in SERVICES:
        provide_service(cluster, service)


def provide_stand_in(cluster: Cluster, name: str) -> None:
    suite, packages = STAND_INS[name]
    if not cluster.has_image(name):
        cluster.tool("image", name, *packages, SUITE=suite)


def provide_service(cluster: Cluster, service: str, source: Path = ROOT, name: str = "") -> None:
    """One of them, of the sources in a folder."""
    name = name or image(service)
    if cluster.has_image(name):
        return
    if built(name):
        cluster.tool("image", name, "-")
    else:
        file = source / f"services/{service}/Dockerfile"
        cluster.tool("build", name, str(source), "-f", str(file), *BUILD_FLAGS.get(service, ()))


def megabytes(name: str) -> float | None:
    """An image's size as podman has it; None where it has none."""
    if not built(name):
        return None
    done = subprocess.run(
        ["podman", "image", "inspect", "--format", "{{.Size}}", name], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1e6


def built(name: str) -> bool:
    if shutil.which("podman") is None:
        return False
    return subprocess.run(["podman", "image", "exists", name], check=False).returncode == 0


def provide_monitoring() -> None:
    """Give podman what compose starts beside the platform, under compose's names: what the test cluster has of it."""
    if not TEST_CLUSTER.exists():
        return
    config = subprocess.run([TEST_CLUSTER, "kubeconfig"], capture_output=True, text=True, check=True)
    archive = Path(config.stdout.strip()).parent / "bin/prometheus.tar"
    for name, stand_in in MONITORING.items():
        if built(name):
            continue
        if not built(stand_in) and archive.exists():
            subprocess.run(["podman", "load", "--quiet", "--input", str(archive)], check=True, capture_output=True)
        if built(stand_in):
            subprocess.run(["podman", "tag", stand_in, name], check=True)
