"""`quarantine`: records that a service has set aside."""

from __future__ import annotations

import typer

from megatronapp.core.quarantine import command


def quarantine(context: typer.Context) -> None:
    """Look at records that a service has set aside, or hand them back: list, show, replay."""
    raise typer.Exit(command.main(context.args))
