"""What can't be built costs one line that says why, and ends nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a Python whose pip fails, and a shell's programs alone."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/build-native", tmp_path / "scripts")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "mkdir", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def built(checkout: Path, *, pip: int, headers: int = 0, compiler: bool = True) -> subprocess.CompletedProcess[str]:
    python = checkout / "bin/python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exit {headers}\necho a long story; exit {pip}\n')
    python.chmod(0o755)
    if compiler:
        (checkout / "bin/c++").symlink_to(str(shutil.which("sh")))
    command = ["bash", "scripts/build-native", str(python), "scan=slower", "rdma=no transport"]
    return subprocess.run(
        command,
        cwd=checkout,
        env={"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_what_was_built_is_not_spoken_of(checkout: Path) -> None:
    done = built(checkout, pip=0)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ({"compiler": False}, "there is no C++ compiler; on Debian: sudo apt-get install g++"),
        ({"headers": 1}, "Python's headers are missing; on Debian: sudo apt-get install python3-dev"),
        ({}, "build/native-scan.log tells why"),
    ],
)
def test_what_was_not_built_says_why_in_a_line(checkout: Path, lacks: dict[str, Any], reason: str) -> None:
    done = built(checkout, pip=1, **lacks)

    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"native/scan was not built (slower): {reason}"
    assert len(done.stdout.splitlines()) == 2
    assert (checkout / "build/native-scan.log").read_text() == "a long story\n"
