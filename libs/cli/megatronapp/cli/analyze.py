"""`analyze`: the detector's rules over recorded traces, handed its flags untouched."""

from __future__ import annotations

import typer

from megatronapp.cli.extras import needs


def analyze(context: typer.Context) -> None:
    """Name what is slow or hangs in a recorded run, and what it costs (`analyze --help` lists the flags)."""
    with needs("detector"):
        from megatronapp.detector.analyze import main
    raise typer.Exit(main(context.args))
