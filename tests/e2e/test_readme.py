"""The documents' commands, as somebody types them, in a checkout of their own and with a home of their own."""

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
LIBRARY_WARNING = re.compile(r"(User|Future|Deprecation)Warning")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def typed(block: str) -> list[str]:
    """The commands of a block: comments left out, continued lines joined."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(file: Path, language: str) -> list[list[str]]:
    """The lines of all blocks of a language, "" for none, in a document."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", file.read_text(), re.M | re.S)
    return [typed(text) for name, text in found if name == language]


def indented(text: str) -> list[str]:
    """The lines outside of fences that Markdown shows as code."""
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return [line.strip() for line in outside.splitlines() if line.startswith(("    ", "\t"))]


README = ROOT / "README.md"
FOLDERS = ("docs/**", "services/*", "native/*", "deploy/**", "examples/**", "tests/data/**")
DOCUMENTS = sorted(file for folder in FOLDERS for file in ROOT.glob(f"{folder}/*.md"))
RUN = [file for file in DOCUMENTS if blocks(file, "bash")]
SHELL = ("curl", "git", "npm", "pip", "pytest", "python", "torchrun", "$")
PROGRAMS = ("megatronapp", ".venv/", "make", "scripts/", "native/", "kubectl", "helm", "docker", "redis-cli", *SHELL)


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
    (command,) = next(commands for commands in blocks(README, "bash") if "megatronapp up" in commands[0])
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


def run_typed(commands: list[str], checkout: Path, environment: dict[str, str]) -> dict[str, str]:
    """What the commands print, by their second word."""
    printed = {}
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert not LIBRARY_WARNING.search(done.stdout + done.stderr), f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command.split()[1]] = done.stdout
    return printed


@pytest.mark.always
def test_every_command_of_the_second_terminal_works_as_typed(checkout: Path, home: dict[str, str], up: Path) -> None:
    commands = next(found for found in blocks(README, "bash") if "preprocess" in found[0])
    printed = run_typed(commands, checkout, home)

    assert "traced by the platform on this machine" in printed["run"]
    stored = Path(home["HOME"], ".local/share/megatronapp/collector/store")
    assert list(stored.rglob("*.parquet"))
    assert "1 rank, 20 steps" in printed["analyze"]
    assert (checkout / "run.pftrace").stat().st_size > 0
    assert printed["token"].strip() in up.read_text()
    assert "Traceback" not in up.read_text()
    assert not LIBRARY_WARNING.search(up.read_text())


@pytest.mark.parametrize("document", RUN, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_of_a_document_works_as_typed(document: Path, checkout: Path, home: dict[str, str]) -> None:
    activated = home | {"PATH": f"{checkout / '.venv/bin'}:{home['PATH']}"}

    for commands in blocks(document, "bash"):
        run_typed(commands, checkout, activated)


def test_the_two_commands_are_targets() -> None:
    for command in blocks(README, "console")[0]:
        words = command.removeprefix("$ ").split("#")[0].split()
        assert subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, check=False).returncode == 0, words


def test_the_readmes_other_blocks_are_what_two_terminals_type() -> None:
    assert [commands[0].split()[0:2] for commands in blocks(README, "bash")] == [
        [".venv/bin/megatronapp", "up"],
        [".venv/bin/megatronapp", "data"],
    ]


@pytest.mark.parametrize(
    "document", [README, *ROOT.glob("[CS]*.md"), *DOCUMENTS], ids=lambda file: str(file.relative_to(ROOT))
)
def test_commands_stand_in_blocks_that_say_whether_they_are_run(document: Path) -> None:
    """CONTRIBUTING.md's rule: bash is run here, console is not and shows a prompt; nothing else holds commands."""
    for lines in blocks(document, ""):
        assert not [line for line in lines if line.startswith(PROGRAMS)], document
    for lines in blocks(document, "console"):
        assert lines[0].startswith("$ "), document
    for language in ("sh", "shell"):
        assert blocks(document, language) == [], document
    assert not [line for line in indented(document.read_text()) if line.startswith(PROGRAMS)], document


def test_indented_commands_are_seen_and_those_in_fences_are_not() -> None:
    text = "Type\n\n    make demo\n\n```console\n$ a \\\n    pip b\n```\n  make c\n"

    assert indented(text) == ["make demo"]
