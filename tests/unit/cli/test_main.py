"""What `megatronapp` says before any command."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from typer.testing import CliRunner

from megatronapp.cli.main import app

WITHOUT = """
import sys

class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacks())
from megatronapp.cli.main import main
sys.argv[0] = "megatronapp"
main()
"""
CLI = {"typer", "rich", "platformdirs"}
HEAVY = {
    "torch",
    "megatron",
    "einops",
    "psutil",
    "pynvml",
    "safetensors",
    "tokenizers",
    "fastapi",
    "pyarrow",
    "kubernetes",
}


def said_without(packages: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT % packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_version_is_that_of_the_installed_package() -> None:
    said = CliRunner().invoke(app, ["--version"])

    assert said.exit_code == 0
    assert said.stdout == f"megatronapp {version('megatronapp')}\n"


def test_where_the_commands_own_packages_are_missing_it_says_what_brings_them() -> None:
    done = said_without(CLI, "attach", "--", "echo", "trained")

    assert done.returncode == 1
    assert done.stderr == "error: typer is not installed; run: pip install 'megatronapp[cli]'\n"


def test_with_them_alone_a_command_is_attached_to() -> None:
    """As `pipx install 'megatronapp[cli]'` leaves it: torch is the training environment's."""
    done = said_without(HEAVY, "attach", "--", "echo", "trained")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
