"""The flags of `megatronapp attach`, and how they reach the ranks. No torch: the command has none to load."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan import flags as scan
from megatronapp.trainer.plugins.scope import flags as scope

VARIABLE = "MEGATRONAPP_ATTACH"
"""Flags of the plug-ins as a JSON list; unset or empty: nothing is attached."""


@dataclass(frozen=True)
class AttachCommand:
    command: list[str]
    """What to run."""
    plugin_flags: list[str] = field(default_factory=list)
    """Those that the ranks read again."""
    job: str = ""
    collector_address: str = ""
    token_file: Path | None = None


def plugin_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_arguments(parser)
    scope.add_flags(parser)
    FaultsPlugin.add_arguments(parser)
    return parser


def parse(argv: Sequence[str]) -> AttachCommand:
    """`[flags] -- command …`. Raises UsageError; ends the program after --help."""
    parser = _Parser(
        prog="megatronapp attach",
        usage="megatronapp attach [flags] -- torchrun … script.py …",
        description="Run a training command with MegaScan attached to each of its ranks; no line of it is changed.",
        parents=[plugin_parser()],
        allow_abbrev=False,
    )
    parser.add_argument("--job", default="", help="<namespace>/<name> of the run; default: local/<the script's name>")
    parser.add_argument("--token-file", type=Path, help="file with the pods' token; default: MEGATRONAPP_TOKEN_FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, as it would be typed without this")
    options = parser.parse_args(argv)
    own = argv[: len(argv) - len(options.command)]
    command = [*options.command[options.command[:1] == ["--"] :]]
    if not command:
        raise UsageError("nothing to run: write the command behind --, as in: megatronapp attach -- torchrun script.py")
    check(options)
    if options.fault_scenario is not None and not options.fault_scenario.is_file():
        raise UsageError(f"--fault-scenario: {options.fault_scenario} is no file")
    return AttachCommand(
        command=command,
        plugin_flags=_without(own, "--job", "--token-file"),
        job=options.job,
        collector_address=options.collector_address,
        token_file=options.token_file,
    )


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for flags of the plug-ins that make no sense."""
    scan.parse(options, "", asked_for=True)
    scope.check(options)
    if options.trace_dir:
        scan.writable(options.trace_dir)


def encode(flags: Sequence[str]) -> str:
    return json.dumps(list(flags))


def decode(text: str) -> argparse.Namespace:
    """The plug-ins' flags in a rank. Raises UsageError."""
    try:
        flags = json.loads(text)
        return plugin_parser().parse_args([str(flag) for flag in flags])
    except (ValueError, TypeError, SystemExit) as error:
        raise UsageError(f"the environment variable {VARIABLE} is {text!r:.200}; it must be a list of flags") from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message)


def _without(flags: Sequence[str], *names: str) -> list[str]:
    """Flags without these and their values."""
    kept, skip = [], False
    for flag in flags:
        if skip:
            skip = False
        elif flag in names:
            skip = True
        elif not flag.startswith(tuple(f"{name}=" for name in names)):
            kept.append(flag)
    return kept
