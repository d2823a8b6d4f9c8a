"""The command line, as somebody types it."""

from __future__ import annotations

import shlex

import typer
from typer.testing import CliRunner


def typed(app: typer.Typer, line: str) -> str:
    """What a command printed. Raises what it raised."""
    result = CliRunner().invoke(app, shlex.split(line), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout
