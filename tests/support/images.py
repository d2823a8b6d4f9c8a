"""The platform's images on the test cluster's nodes: loaded, and built before where they were not.

What can't be pulled there is made of Debian packages: images of the same names with the same programs in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from tests.support.cluster import PYTHON_IMAGE, ROOT, Cluster

VERSION = "0.1.0"
SERVICES = ("trainer", "trace-collector", "detector", "scope-gateway", "operator")
NODE_IMAGE, REDIS_IMAGE = "docker.io/library/node:20-slim", "docker.io/valkey/valkey:8.1"
STAND_INS: dict[str, tuple[str, Sequence[str]]] = {
    PYTHON_IMAGE: ("bookworm", ("python3", "python3-venv", "python3-pip")),
    NODE_IMAGE: ("trixie", ("nodejs", "npm")),
    REDIS_IMAGE: ("trixie", ("valkey-server",)),
}
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
    for name, (suite, packages) in STAND_INS.items():
        if not cluster.has_image(name):
            cluster.tool("image", name, *packages, SUITE=suite)
    for service in SERVICES:
        if cluster.has_image(image(service)):
            continue
        if built(image(service)):
            cluster.tool("image", image(service), "-")
        else:
            file = f"services/{service}/Dockerfile"
            cluster.tool("build", image(service), str(ROOT), "-f", str(ROOT / file), *BUILD_FLAGS.get(service, ()))


def built(name: str) -> bool:
    if shutil.which("podman") is None:
        return False
    return subprocess.run(["podman", "image", "exists", name], check=False).returncode == 0
