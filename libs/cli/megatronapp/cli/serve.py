"""`serve`: a checkpoint on this machine that answers, and that one can look into while it does (MegaScope)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatronapp.cli import local
from megatronapp.cli.extras import needs
from megatronapp.cli.folders import data_folder
from megatronapp.cli.lines import readable
from megatronapp.core.errors import NotFoundError
from megatronapp.core.trainingjob import TrainingJob

if TYPE_CHECKING:
    from megatronapp.cli.local import LocalPlatform
    from megatronapp.trainer.jobs import JobEvent

PASS_THROUGH: dict[str, Any] = {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}
"""What the trainer alone knows of: --max-positions, --tokenizer-model, …"""


def serve(
    context: typer.Context,
    checkpoint: Annotated[Path, typer.Option(help="a run's checkpoints, or one of them")],
    tensor_model_parallel_size: Annotated[int, typer.Option(min=1, help="ranks that share each layer")] = 1,
    pipeline_model_parallel_size: Annotated[int, typer.Option(min=1, help="pipeline stages")] = 1,
    name: Annotated[str, typer.Option(help="the job's name")] = "served",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port of the page, where no platform runs yet; 0: any free port")
    ] = 8080,
    folder: Annotated[Path | None, typer.Option(help="the platform's folder; default: the user's data folder")] = None,
) -> None:
    """Serve a checkpoint until Ctrl-C: the page, `PUT /api` and `/v1/completions`. Other flags go to the trainer."""
    if not checkpoint.is_dir():
        raise NotFoundError(f"--checkpoint {checkpoint}: there is no such folder")
    sizes = {"tensor": tensor_model_parallel_size, "pipeline": pipeline_model_parallel_size}
    job = served_job(name, checkpoint, context.args, **sizes)
    with needs("all"):
        from megatronapp.cli import local_stack  # noqa: F401
        from megatronapp.trainer import jobs  # noqa: F401
    raise typer.Exit(asyncio.run(_serve(job, folder or data_folder(), port)))


def served_job(
    name: str, checkpoint: Path, flags: Sequence[str] = (), *, tensor: int = 1, pipeline: int = 1
) -> TrainingJob:
    """A TrainingJob that serves this checkpoint. Raises ConfigError for a name that is none."""
    document = {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "mode": "serve",
            "procPerNode": tensor * pipeline,
            "parallelism": {"tensor": tensor, "pipeline": pipeline},
            "plugins": {"scope": {"enabled": True}},
            "args": ["--load", str(checkpoint.resolve()), *flags],
        },
    }
    return TrainingJob.parse(json.dumps(document), "serve")


async def _serve(job: TrainingJob, folder: Path, port: int) -> int:
    from megatronapp.trainer.jobs import run_job

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    show = readable if sys.stdout.isatty() else str

    def on_event(event: JobEvent) -> None:
        print(show(event.text), flush=True)

    async with _platform(folder, port) as (platform, link):
        for line in [f"page  {link}", *hints(platform.page, folder)]:
            print(line, flush=True)
        result = await run_job(
            job,
            work_dir=folder / "runs" / job.metadata.name,
            collector_address=platform.collector_address,
            gateway_address=platform.gateway_address,
            token_file=Path(platform.token_file),
            on_event=on_event,
            stop=stop,
        )
    return result.exit_code


@asynccontextmanager
async def _platform(folder: Path, port: int) -> AsyncIterator[tuple[LocalPlatform, str]]:
    """The one that runs in the folder, or one that is started for this; and the page's address, to sign in with."""
    from megatronapp.cli.local_stack import Options, local_stack

    found = local.find(folder)
    if found is not None and found.gateway_address:
        yield found, found.page
        return
    async with local_stack(Options(folder, page_port=port)) as running:
        yield (
            local.LocalPlatform(
                running.collector_address, str(running.token_file), running.page, running.gateway_address
            ),
            running.link,
        )


def hints(page: str, folder: Path) -> list[str]:
    """How the model is asked."""
    token = f"megatronapp token --folder {folder}"
    return [
        "The model answers, on the page and by",
        f"  curl {page}v1/completions -H 'Content-Type: application/json' \\",
        f'    -H "Authorization: Bearer $({token})" -d \'{{"prompt": "The king"}}\'',
    ]
