"""`trace aggregate`: many rank files into one timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.extras import needs

SOURCE = ("-b", "--benchmark-dir", "--b", "--bench-dir", "--benchmark_dir", "--benchmark")
"""The last three are MegaScan's spellings."""

trace_app = typer.Typer(help="Work on recorded traces.", no_args_is_help=True)


@trace_app.callback()
def _trace() -> None:
    """Work on recorded traces."""


@trace_app.command("aggregate")
def aggregate(
    source: Annotated[Path, typer.Option(*SOURCE, help="folder (or file) with the ranks' traces")],
    output: Annotated[Path, typer.Option("-o", "--output", help="timeline to write: .json (Chrome) or .pftrace")],
    detect: Annotated[bool, typer.Option("-d", "--detect", help="also name what is slow")] = False,
) -> None:
    """Align and merge the ranks' traces into one timeline."""
    with needs("collector"):
        from megatronapp.collector.aggregate import main as aggregate_main
    status = aggregate_main(["-b", str(source), "-o", str(output)])
    if detect and status == 0:
        with needs("detector"):
            from megatronapp.detector.analyze import main as analyze_main
        status = analyze_main([str(source)])
    raise typer.Exit(status)
