"""The command line: flags made from the config classes and the plug-ins, with Megatron-LM's names."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Collection, Sequence
from typing import Any, Literal, NoReturn

from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer import data_paths, foreign_flags
from megatronapp.trainer.config import SECTIONS, TrainerConfig
from megatronapp.trainer.config_fields import HELP, flag_name
from megatronapp.trainer.plugins.base import Plugin

log = get_logger(__name__)

NEAR = 0.75
"""How alike two flags are, from 0 to 1, when one may have been meant by the other."""
REQUIRE = "--require-plugins"
FLAGS_OF_PLUGINS = {
    "scan": (
        "--trace",
        "--trace-dir",
        "--trace-interval",
        "--continuous-trace-iterations",
        "--trace-granularity",
        "--collector-address",
    ),
    "scope": ("--scope", "--training-ws-port", "--enable-ws-server", "--scope-sae-dir"),
    "dpp": ("--use-dpp", "--dpp-policy", "--dpp-cap", "--dpp-no-split", "--dpp-order", "--dpp-transport"),
    "fbd": (
        "--forward-backward-disaggregating",
        "--ignore-forward-tensor-parallel",
        "--forward-tensor-model-parallel-size",
        "--forward-pipeline-model-parallel-size",
        "--fbd-slots",
        "--fbd-mode",
        "--fbd-forward-on-cpus",
        "--fbd-roles-apart",
        "--fbd-tflops",
        "--fbd-memory-gib",
        "--fbd-forward-speed",
        "--fbd-forward-memory-gib",
        "--fbd-link-gbps",
    ),
    "megatrace": ("--nccl-trace", "--nccl-trace-ring-mib"),
    "faults": ("--fault-scenario",),
}
"""All flags of each: what tells, where a plug-in is not installed or not yet loaded, that a flag is its."""


class ArgumentParser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `megatronapp train --help` lists all flags")


def build_parser(plugins: Sequence[type[Plugin]] = ()) -> ArgumentParser:
    """The trainer's flags, then those of each plug-in in a group of its own."""
    parser = ArgumentParser(
        prog="megatronapp train",
        usage="megatronapp train [flags]",
        description="Train a GPT, BERT or T5 with megatron-core. Flags have Megatron-LM's names and meanings.",
        allow_abbrev=False,
    )
    for section in SECTIONS.values():
        group = parser.add_argument_group((section.__doc__ or "").rstrip("."))
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            _add_flag(group, field, hints[field.name])
    group = parser.add_argument_group("Plug-ins", "each has its own flags")
    _add_requirement(group)
    for plugin in plugins:
        plugin.add_arguments(parser)
    return parser


def parse(argv: Sequence[str], plugins: Sequence[type[Plugin]] = ()) -> tuple[TrainerConfig, argparse.Namespace]:
    """The trainer's settings, and the namespace that also holds the plug-ins' flags.

    Raises UsageError for an unknown flag, naming the nearest known one, and for a value that does not fit its flag;
    PluginMissingError for a plug-in that is asked for, by name or by one of its flags, and not among `plugins`;
    ConfigError and DataError for a file that holds flags.
    """
    translation = foreign_flags.translate(argv)
    argv = translation.argv
    parser = build_parser(plugins)
    names = [plugin.name for plugin in plugins]
    _refuse_missing_plugins(argv, names)
    _refuse_unknown(argv, parser._option_string_actions)
    namespace, left = parser.parse_known_args(argv)
    if left:
        raise UsageError(f"unexpected value {left[0]!r}; `megatronapp train --help` lists all flags")
    for remark in translation.remarks if os.environ.get("RANK", "0") == "0" else ():
        log.info("flag_without_effect", flag=remark)
    config = TrainerConfig.of(namespace)
    return dataclasses.replace(config, data=data_paths.resolved(config.data)), namespace


def check_known(argv: Sequence[str], installed: Sequence[str]) -> None:
    """Raises UsageError for an unknown flag and PluginMissingError, as `parse` does: cheap, for before torch comes.

    With a plug-in among the `installed` whose flags only it knows, all is left to `parse`.
    """
    argv = foreign_flags.translate(argv).argv
    if FLAGS_OF_PLUGINS.keys() >= set(installed):
        _refuse_missing_plugins(argv, installed)
        theirs = [flag for name in installed for flag in FLAGS_OF_PLUGINS[name]]
        _refuse_unknown(argv, [*build_parser()._option_string_actions, *theirs])


def plugin_flags(plugins: Sequence[type[Plugin]], namespace: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By plug-in: its flags and their values, whether or not they were typed."""
    return {plugin.name: _flags_of(plugin, namespace) for plugin in plugins}


def _flags_of(plugin: type[Plugin], namespace: argparse.Namespace) -> dict[str, Any]:
    parser = ArgumentParser(add_help=False)
    plugin.add_arguments(parser)
    actions = (action for action in parser._actions if action.option_strings and hasattr(namespace, action.dest))
    return {max(action.option_strings, key=len): getattr(namespace, action.dest) for action in actions}


def check_required(argv: Sequence[str]) -> None:
    """Raises UsageError where flags that every run needs are missing: cheap, for before torch is imported.

    Plug-ins that are asked for, and flags that may be a plug-in's or misspelled, are left to `parse`.
    """
    parser = build_parser()
    argv = foreign_flags.translate(argv).argv
    given = {argument.split("=", 1)[0] for argument in argv}
    known = given <= {*parser._option_string_actions} | {name for name in given if not name.startswith("--")}
    required = [action.option_strings[0] for action in parser._actions if action.required]
    missing = [name for name in required if name not in given]
    if missing and known and not given & {"-h", "--help", REQUIRE, "--use-checkpoint-args"}:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def _add_requirement(parser: Any) -> None:
    text = "exit with code 69 unless these plug-ins are installed"
    parser.add_argument(REQUIRE, nargs="+", action="extend", default=[], metavar="NAME", help=text)


def _refuse_missing_plugins(argv: Sequence[str], installed: Sequence[str]) -> None:
    """First of all: flags of a plug-in that is missing are unknown."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    _add_requirement(parser)
    asked = [(name, f"{REQUIRE} {name}") for name in parser.parse_known_args(argv)[0].require_plugins]
    given = {argument.split("=", 1)[0] for argument in argv}
    asked += [(name, flag) for name, flags in FLAGS_OF_PLUGINS.items() for flag in flags if flag in given]
    for name, flag in asked:
        if name not in installed:
            raise PluginMissingError(
                f"{flag} asks for the plug-in {name}, which is not installed here "
                f"({', '.join(installed) or 'none'} installed): install the package that brings it, or leave it out"
            )


def _refuse_unknown(argv: Sequence[str], known: Collection[str]) -> None:
    """Before argparse looks, as it would first complain of required flags that a misspelled one was meant to be."""
    for argument in argv:
        name = argument.split("=", 1)[0]
        if name.startswith("--") and name not in known:
            words = [option.removeprefix("--") for option in known if option.startswith("--")]
            near = difflib.get_close_matches(name.removeprefix("--"), words, n=1, cutoff=NEAR)
            hint = f"did you mean --{near[0]}?" if near else "`megatronapp train --help` lists all flags"
            raise UsageError(f"unknown flag {name}; {hint}")


def _add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    name = flag_name(field)
    text = field.metadata[HELP].replace("%", "%%")
    if hint is bool:
        group.add_argument(name, action="store_true", help=text)
        return
    kind, options = _argument_type(hint)
    if field.default is dataclasses.MISSING:
        group.add_argument(name, required=True, type=kind, help=text, **options)
        return
    shown = text if field.default in (None, ()) else f"{text} (default %(default)s)"
    group.add_argument(name, default=field.default, type=kind, help=shown, **options)


def _argument_type(hint: Any) -> tuple[Any, dict[str, Any]]:
    """argparse's `type` and further keywords for a field's annotation."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is Literal:
        return str, {"choices": typing.get_args(hint)}
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], {"nargs": "+"}
    return hint, {}
