"""What `megatronapp` says before any command."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from megatronapp.cli.main import app


def test_the_version_is_that_of_the_installed_package() -> None:
    said = CliRunner().invoke(app, ["--version"])

    assert said.exit_code == 0
    assert said.stdout == f"megatronapp {version('megatronapp')}\n"
