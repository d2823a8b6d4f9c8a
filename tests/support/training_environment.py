"""A training environment of somebody else's: torch, and packages in versions that we could not run with."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

WITH_TORCH = ("torch", "numpy", "packaging")


def make(folder: Path, *packages: str) -> Path:
    """A virtual environment with these packages; torch and what it needs are this environment's, by links. Returns its
    Python. Skips the test where the packages can't be had."""
    venv.create(folder, symlinks=True)
    [site_packages] = folder.glob("lib/python3*/site-packages")
    for name in sorted(_needed(WITH_TORCH)):
        _link(name, site_packages)
    _install(site_packages, *packages)
    return folder / "bin" / "python"


def megatron_core(folder: Path, version: str) -> Path:
    """megatron-core alone, for PYTHONPATH. Skips the test where it can't be had."""
    _install(folder, "--no-deps", f"megatron-core=={version}")
    return folder


def _install(folder: Path, *packages: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{packages[-1]} can't be installed: {done.stderr.strip()[-200:]}")


def _needed(names: tuple[str, ...]) -> set[str]:
    """These and what they need, as far as it is installed."""
    found, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for text in requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return found


def _link(name: str, target: Path) -> None:
    files = distribution(name).files or []
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(distribution(name).locate_file(top)))
        if source.exists() and not (target / top).exists():
            (target / top).symlink_to(source)
