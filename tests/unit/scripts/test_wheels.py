"""The wheel that goes into a training environment: small, for each Python that one may have, and needing nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
MAX_BYTES, MAX_SECONDS = 5 << 20, 0.2
IMPORT = """
import sys, time
begin = time.process_time()
import megatronapp.scan
print(time.process_time() - begin)
print(sorted(name for name in ("torch", "numpy", "grpc", "google.protobuf", "pydantic") if name in sys.modules))
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def pythons() -> dict[str, Path]:
    """Interpreters by version: those on PATH, and pyenv's."""
    found = {".".join(map(str, sys.version_info[:2])): Path(sys.executable)}
    for version in VERSIONS:
        roots = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
        roots += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
        for python in (root / f"python{version}" for root in roots):
            if version not in found and python.exists() and runs(python):
                found[version] = python
    return found


def runs(python: Path) -> bool:
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """By the interpreter that each is for. Skips where the tools that build them can't be had."""
    dist = tmp_path_factory.mktemp("dist")
    known = pythons()
    asked = {"DIST": str(dist), "PYTHONS": " ".join(map(str, known.values()))}
    command = [ROOT / "scripts/wheels", "scan"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Temporary failure in name resolution" in done.stderr:
        pytest.skip(done.stderr.strip()[-200:])
    assert done.returncode == 0, done.stderr
    return {
        python: next(dist.glob(f"megatronapp_scan-*-cp{version.replace('.', '')}-*.whl"))
        for version, python in known.items()
    }


def test_each_is_small_needs_no_distribution_and_is_imported_at_once(wheels: dict[Path, Path], tmp_path: Path) -> None:
    for number, (python, wheel) in enumerate(wheels.items()):
        folder = tmp_path / str(number)
        ZipFile(wheel).extractall(folder)
        [metadata] = folder.glob("*.dist-info/METADATA")
        done = subprocess.run(
            [python, "-S", "-c", IMPORT], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
        )

        assert done.returncode == 0, done.stderr
        seconds, heavy = done.stdout.splitlines()
        assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < MAX_BYTES
        assert "Requires-Dist" not in metadata.read_text()
        assert float(seconds) <= MAX_SECONDS
        assert heavy == "[]"
