"""The list of flags in docs/trainer.md, made from the parser: `python -m megatronapp.trainer.reference` rewrites it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from megatronapp.trainer.arguments import build_parser
from megatronapp.trainer.config import EFFECT, SECTIONS, Effect, flag_name
from megatronapp.trainer.plugins.base import discover

BEGIN = "<!-- flags: made by `python -m megatronapp.trainer.reference` -->"
END = "<!-- end of flags -->"
DOCUMENT = Path("docs/trainer.md")
EFFECTS: dict[str, Effect] = {
    flag_name(field): field.metadata[EFFECT] for section in SECTIONS.values() for field in dataclasses.fields(section)
}
ON_RESUME = {Effect.FORWARD: "as saved", Effect.TRAINING: "may change", Effect.OPERATION: "–"}


def flag_tables() -> str:
    """One Markdown table per group of flags, those of installed plug-ins included."""
    parser = build_parser(discover())
    groups = [group for group in parser._action_groups if group._group_actions and group.title != "options"]
    return "\n\n".join(_table(group) for group in groups)


def _table(group: argparse._ArgumentGroup) -> str:
    head = "| flag | values | default | on resume | means |"
    rows = [f"### {group.title}", "", head, "| --- | --- | --- | --- | --- |"]
    for action in group._group_actions:
        text = (action.help or "").replace(" (default %(default)s)", "").replace("%%", "%")
        name = action.option_strings[0]
        resume = ON_RESUME[EFFECTS.get(name, Effect.OPERATION)]
        rows.append(f"| `{name}` | {_values(action)} | {_default(action)} | {resume} | {text} |")
    return "\n".join(rows)


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "–"
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    name = {int: "whole number", float: "number"}.get(action.type, "text")  # type: ignore[call-overload]
    return f"{name} …" if action.nargs == "+" else str(name)


def _default(action: argparse.Action) -> str:
    if action.required:
        return "**must be given**"
    empty = action.default is None or action.default is False or action.default == ()
    return "–" if empty else f"`{action.default}`"


def rewrite(document: str) -> str:
    """The document with its list of flags made anew."""
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{flag_tables()}\n\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewrite(DOCUMENT.read_text()))
