"""`analyze`: the detector's rules over recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.extras import needs


def analyze(
    path: Annotated[
        Path,
        typer.Argument(
            help="a trace folder, the folder of `megatronapp up` or a run in its store, MegaScan's files or their "
            "aggregate, traces of PyTorch's profiler, or a table of the straggler-analysis format"
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Name what is slow in a recorded run, and what it costs."""
    with needs("detector"):
        from megatronapp.detector.analyze import main
    raise typer.Exit(main([str(path), *(["--json"] if json else [])]))
