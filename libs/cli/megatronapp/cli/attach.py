"""`attach`: the instruments on a training command that people already have."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import typer

from megatronapp.cli import local
from megatronapp.cli.extras import needs
from megatronapp.cli.folders import data_folder


def attach(context: typer.Context) -> None:
    """Run a training command with MegaScan attached, e.g. `megatronapp attach -- torchrun pretrain_gpt.py …`."""
    with needs("trainer"):
        from megatronapp.trainer.attach import arguments
        from megatronapp.trainer.attach.launch import run
        from megatronapp.trainer.environment import GATEWAY_ADDRESS
    asked = arguments.parse(context.args)
    variables = {
        arguments.VARIABLE: arguments.encode(asked.plugin_flags),
        "MEGATRONAPP_JOB": asked.job or os.environ.get("MEGATRONAPP_JOB") or f"local/{_script(asked.command)}",
    }
    if not os.environ.get("MEGATRONAPP_RUN_ID"):
        variables["MEGATRONAPP_RUN_ID"] = secrets.token_hex(8)
    if asked.token_file:
        variables["MEGATRONAPP_TOKEN_FILE"] = str(asked.token_file.resolve())
    address = asked.collector_address or os.environ.get("MEGATRONAPP_COLLECTOR_ADDRESS", "")
    found = None if address else local.find(data_folder())
    if found is not None:
        address = found.collector_address
        variables.setdefault("MEGATRONAPP_TOKEN_FILE", os.environ.get("MEGATRONAPP_TOKEN_FILE") or found.token_file)
        variables[GATEWAY_ADDRESS] = os.environ.get(GATEWAY_ADDRESS) or found.gateway_address
    if address:
        variables["MEGATRONAPP_COLLECTOR_ADDRESS"] = address
    elif not any(flag.startswith("--trace") for flag in asked.plugin_flags):
        print("not traced: no platform runs on this machine (`megatronapp up` starts one)", file=sys.stderr)
    raise typer.Exit(run(asked.command, variables))


def _script(command: list[str]) -> str:
    """The job's name after the script that is run: what Kubernetes would take as a name."""
    script = next((Path(part).stem for part in command if part.endswith(".py")), Path(command[0]).name)
    name = "".join(letter if letter.isalnum() else "-" for letter in script.lower()).strip("-")
    return name[:63].strip("-") or "train"
