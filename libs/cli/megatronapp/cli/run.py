"""`run`: a TrainingJob file on this machine, as a cluster would run it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli import local
from megatronapp.cli.extras import needs
from megatronapp.cli.folders import data_folder
from megatronapp.cli.lines import readable
from megatronapp.core.errors import UsageError
from megatronapp.core.trainingjob import TrainingJob


def run(
    file: Annotated[Path, typer.Argument(help="a TrainingJob, e.g. examples/laptop/gpt-tiny.yaml")],
    storage: Annotated[list[str] | None, typer.Option(help="NAME=DIR, for each storage of the job")] = None,
    collector_address: Annotated[
        str,
        typer.Option(envvar="MEGATRONAPP_COLLECTOR_ADDRESS", help="host:port; default: that of `megatronapp up`"),
    ] = "",
    gateway_address: Annotated[
        str,
        typer.Option(
            envvar="MEGATRONAPP_GATEWAY_ADDRESS",
            help="host:port where models are shown (plugins.scope); default: that of `megatronapp up`",
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(envvar="MEGATRONAPP_TOKEN_FILE", help="file with the pods' token")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="folder for checkpoints and logs; default: the user's data folder")
    ] = None,
) -> None:
    """Run a TrainingJob on this machine; restart it from its last checkpoint as its failure policy says."""
    job = TrainingJob.load(file)
    with needs("trainer"):
        from megatronapp.trainer.jobs import JobEvent, run_job_until_signal
    show = readable if sys.stdout.isatty() else str
    # The platform of this machine speaks clear text, on the loopback.
    certificates = _certificates() if collector_address else {}
    found = None if collector_address else local.find(data_folder())
    if found is not None:
        collector_address, token_file = found.collector_address, token_file or Path(found.token_file)
        gateway_address = gateway_address or found.gateway_address
    traced = _traced(found is not None, collector_address)

    def on_event(event: JobEvent) -> None:
        if traced and event.kind == "start" and event.attempt == 1:
            print(traced, flush=True)
        print(show(event.text), flush=True)

    result = run_job_until_signal(
        job,
        work_dir=folder or data_folder() / "runs" / job.metadata.name,
        collector_address=collector_address,
        gateway_address=gateway_address,
        token_file=token_file,
        certificates=certificates,
        storage=dict(_storage(text) for text in storage or ()),
        on_event=on_event,
    )
    raise typer.Exit(result.exit_code)


def _traced(by_local_platform: bool, collector_address: str) -> str:
    """Whether somebody watches the run; nothing where the user has said who."""
    if by_local_platform:
        return f"traced by the platform on this machine, {collector_address}"
    return "" if collector_address else "not traced: no platform runs on this machine (`megatronapp up` starts one)"


def _certificates() -> dict[str, str]:
    """The variables with the files for TLS, which the ranks are to have too. Raises ConfigError for what is no use."""
    from megatronapp.core.tls import VARIABLES, ClientTls

    ClientTls.of_environment().credentials()
    return {name: str(Path(os.environ[name]).resolve()) for name in VARIABLES if os.environ.get(name)}


def _storage(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UsageError(f"--storage {text}: write it as NAME=DIR")
    return name, Path(folder).expanduser()
