"""Commands that are handed to the trainer with their flags untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megatronapp.cli.extras import needs

PASS_THROUGH: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}

data_app = typer.Typer(help="Make training data.", no_args_is_help=True)


def train(context: typer.Context) -> None:
    """Train a model with Megatron's own flag names (`megatronapp train --help` lists them)."""
    with needs("trainer"):
        from megatronapp.trainer.main import main
    raise typer.Exit(main(context.args))


@data_app.command("preprocess", **PASS_THROUGH)
def preprocess(context: typer.Context) -> None:
    """Turn jsonl text into .bin/.idx files, with the flags of Megatron's preprocess_data."""
    with needs("trainer"):
        from megatronapp.trainer.data.preprocess import main
    raise typer.Exit(main(context.args))


def generate(context: typer.Context) -> None:
    """Generate text with a checkpoint (`megatronapp generate --help` lists the flags)."""
    with needs("trainer"):
        from megatronapp.trainer.generate.main import main
    raise typer.Exit(main(context.args))


def checkpoint(context: typer.Context) -> None:
    """Say what a checkpoint holds, or whether it is whole: inspect, verify."""
    with needs("trainer"):
        from megatronapp.trainer.checkpoint_command import main
    raise typer.Exit(main(context.args))


def convert(context: typer.Context) -> None:
    """Convert weights of Hugging Face to a checkpoint, or back (`megatronapp convert --help` lists the flags)."""
    with needs("trainer"):
        from megatronapp.trainer.convert.main import main
    raise typer.Exit(main(context.args))


def config(
    config_file: Annotated[Path, typer.Option(help="where to write it")] = Path("accelerate.yaml"),
) -> None:
    """Ask how ranks share a model, and write it as `accelerate config` does, for `train --accelerate-config`."""
    with needs("trainer"):
        from megatronapp.trainer.accelerate import questions
        from megatronapp.trainer.accelerate.plugin import AccelerateConfig
    questions.write(config_file, lambda text, default: typer.prompt(text, default=default, type=type(default)))
    AccelerateConfig.read(config_file)
    print(f"{config_file}: megatronapp train --accelerate-config {config_file} …")


def interfere(context: typer.Context) -> None:
    """Occupy a GPU with concurrent matrix products, to see real interference found."""
    with needs("trainer"):
        from megatronapp.trainer.interfere import main
    raise typer.Exit(main(context.args))
