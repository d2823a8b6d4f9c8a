"""What the system lacks is said at once, with the one command to type."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("bash", "sh", "dirname", "ldconfig", "python3", "grep", "make", "find", "test", "apt-get", "env")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An ordinary user whose only programs are a shell's, without Redis and all else that the tests start."""
    for name in NEEDED:
        program = shutil.which(name)
        if program:
            (tmp_path / name).symlink_to(Path(program).resolve())
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    return {"PATH": str(tmp_path), "HOME": "/nonexistent"}


def run(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_somebody_who_may_not_install_is_told_what_to_type(bare: dict[str, str]) -> None:
    done = run("scripts/setup-system", environment=bare)

    assert done.returncode == 1
    assert "redis-server" in done.stderr
    assert done.stderr.splitlines()[-1] == "make: type: sudo make setup-system"


def test_make_test_says_it_before_anything_else(bare: dict[str, str]) -> None:
    done = run("make", "--no-print-directory", "test", environment=bare)

    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("make: missing on this machine: ")


def test_a_system_without_debian_s_packages_is_told_what_is_missing(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "apt-get").unlink(missing_ok=True)

    done = run("scripts/setup-system", environment={**bare, "CI": "true"})

    assert done.returncode == 1
    assert "no Debian system" in done.stderr
    assert "redis-server" in done.stderr


def test_a_machine_that_has_all_is_left_alone() -> None:
    done = run("scripts/setup-system", environment={"PATH": os.environ["PATH"]})

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
