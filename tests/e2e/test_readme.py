"""The README's commands, as somebody types them, in a checkout of their own and with a home of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UP_SECONDS = 60.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def typed(block: str) -> list[str]:
    """The commands of a block: comments left out, continued lines joined."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks() -> list[list[str]]:
    """All blocks of the README that hold commands."""
    found = [typed(block) for block in re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)]
    return [commands for commands in found if commands[0].startswith(("make ", ".venv/bin/"))]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that a clone would have, with what `make setup` puts beside them."""
    target = tmp_path / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has never used it."""
    ours = ("MEGATRONAPP_", "XDG_", "PET_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    (tmp_path / "home").mkdir()
    return {**inherited, "HOME": str(tmp_path / "home")}


@pytest.fixture
def up(checkout: Path, home: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """The platform, as the README's first terminal has it; gives the file of what it prints."""
    (command,) = next(commands for commands in blocks() if "megatronapp up" in commands[0])
    printed = tmp_path / "up.log"
    with printed.open("w") as output:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], cwd=checkout, env=home, stdout=output, stderr=output
        )
        try:
            deadline = time.monotonic() + UP_SECONDS
            while "a run" not in printed.read_text():
                assert process.poll() is None, printed.read_text()
                assert time.monotonic() < deadline, printed.read_text()
                time.sleep(0.2)
            yield printed
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def test_every_command_of_the_second_terminal_works_as_typed(checkout: Path, home: dict[str, str], up: Path) -> None:
    commands = next(found for found in blocks() if "preprocess" in found[0])
    printed = {}
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=checkout, env=home, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command.split()[1]] = done.stdout

    assert "traced by the platform on this machine" in printed["run"]
    stored = Path(home["HOME"], ".local/share/megatronapp/collector/store")
    assert list(stored.rglob("*.parquet"))
    assert "1 ranks, 20 steps" in printed["analyze"]
    assert (checkout / "run.pftrace").stat().st_size > 0
    assert "Traceback" not in up.read_text()


def test_the_two_commands_are_targets() -> None:
    for command in blocks()[0]:
        words = command.split("#")[0].split()
        assert subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, check=False).returncode == 0, words


def test_no_other_block_of_commands_is_left_out() -> None:
    kinds = [commands[0].split()[0:2] for commands in blocks()]

    assert kinds == [["make", "demo"], [".venv/bin/megatronapp", "up"], [".venv/bin/megatronapp", "data"]]
