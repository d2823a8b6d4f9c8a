"""`up`: the platform alone, in one process, for runs that are started elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.extras import needs
from megatronapp.cli.folders import data_folder


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0: any free port")] = 8080,
    collector_port: Annotated[
        int, typer.Option(min=0, max=65535, help="port that training connects to; 0: any free port")
    ] = 7601,
    folder: Annotated[
        Path | None, typer.Option(help="folder for traces and tokens; default: the user's data folder")
    ] = None,
) -> None:
    """Start collector, detector, gateway and page in one process on this machine."""
    with needs("all"):
        from megatronapp.cli.local_stack import Options, serve
    asyncio.run(serve(Options(folder or data_folder(), page_port=port, collector_port=collector_port)))
