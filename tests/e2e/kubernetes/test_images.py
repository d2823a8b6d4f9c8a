"""The images are slim: what each adds to its base stays within a budget, and nothing in it builds or installs."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import images
from tests.support.cluster import PYTHON_IMAGE, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

BUDGET_MEGABYTES = {"operator": 120, "detector": 120, "scope-gateway": 170, "trace-collector": 200}
"""Over the base. The collector has Arrow for its Parquet files (80 MB), the gateway Perfetto's page (48 MB)."""


@pytest.mark.parametrize("service", BUDGET_MEGABYTES)
def test_an_image_adds_no_more_than_its_budget(whole_cluster: Cluster, service: str) -> None:
    base, size = images.megabytes(PYTHON_IMAGE), images.megabytes(images.image(service))
    if base is None or size is None:
        pytest.skip(f"{images.image(service)} was not built here")

    added = size - base
    print(f"{service}: {size:.0f} MB, {added:.0f} over its base of {base:.0f}")

    assert added <= BUDGET_MEGABYTES[service]


@pytest.mark.parametrize("service", BUDGET_MEGABYTES)
def test_an_image_runs_its_service_and_has_nothing_to_install_with(whole_cluster: Cluster, service: str) -> None:
    name = images.image(service)
    if not images.built(name):
        pytest.skip(f"{name} was not built here")

    told = _in(name, "--help")
    found = _in(name, "-c", LOOK, entrypoint="python")

    assert "--http-port" in told
    assert found.split() == []


LOOK = """
from importlib.util import find_spec
from pathlib import Path
print(*(name for name in ("pip", "setuptools") if find_spec(name) and "/opt/" in find_spec(name).origin))
files = Path("/opt/megatronapp").rglob("*")
print(*(path for path in files if path.name == "tests" or path.suffix in {".pyx", ".c", ".h"}))
"""


def _in(name: str, *command: str, entrypoint: str = "") -> str:
    own = ["--entrypoint", entrypoint] if entrypoint else []
    program = ["podman", "run", "--rm", "--network", "none", *own, name, *command]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
