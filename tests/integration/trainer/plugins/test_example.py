"""The worked example of docs/plugins.md: built, installed into a fresh environment, and seen at work."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import TINY

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "plugin"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that sees what is installed here, with the example installed by pip and without a network."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    here = sysconfig.get_path("purelib")
    (site / "installed_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    source = shutil.copytree(EXAMPLE, folder / "plugin")  # a build leaves files beside the sources
    # Python 3.11 brings an old setuptools into each environment, before the one that is installed here.
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True, timeout=300)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *options, str(source)], check=True, timeout=300)
    return python


def run(arguments: list[str], python: Path | str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([python, *arguments], capture_output=True, text=True, timeout=300, env=environment)


def events(output: str, name: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [event for event in parsed if event["event"] == name]


CLI = ["-m", "megatronapp.cli.main", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "megatronapp.trainer"]
FLAGS = f"{TINY} --train-iters 5".split()
ON = ["--weight-norm-interval", "2"]


@pytest.fixture(scope="module")
def single(python: Path) -> subprocess.CompletedProcess[str]:
    return run([*CLI, *FLAGS, *ON, "--require-plugins", "weight_norms"], python)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_the_example_is_installed_and_acts(single: subprocess.CompletedProcess[str]) -> None:
    assert single.returncode == 0, single.stderr
    found = events(single.stdout + single.stderr, "weight_norms")
    assert [event["step"] for event in found] == [2, 4]
    assert all(sorted(event["layers"]) == ["1", "2", "3", "4"] for event in found)
    assert found[0]["layers"] != found[1]["layers"]


@pytest.mark.timeout(600)
@pytest.mark.long
def test_the_example_counts_a_layer_whole_when_ranks_share_it(
    python: Path, single: subprocess.CompletedProcess[str]
) -> None:
    shared = run([*TORCHRUN, *FLAGS, *ON, "--tensor-model-parallel-size", "2"], python)

    assert shared.returncode == 0, shared.stderr
    pairs = zip(*(events(r.stdout + r.stderr, "weight_norms") for r in (single, shared)), strict=True)
    for one, two in pairs:
        assert all(math.isclose(one["layers"][n], two["layers"][n], rel_tol=1e-4) for n in one["layers"])


@pytest.mark.timeout(600)
@pytest.mark.long
def test_without_the_example_its_flag_is_unknown_and_its_name_is_missing() -> None:
    unknown = run([*CLI, *FLAGS, *ON], sys.executable)
    missing = run([*CLI, *FLAGS, "--require-plugins", "weight_norms"], sys.executable)

    assert unknown.returncode == 2
    assert "unknown flag --weight-norm-interval" in unknown.stderr
    assert missing.returncode == 69
    assert "asks for the plug-in weight_norms, which is not installed here" in missing.stderr
