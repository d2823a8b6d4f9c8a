"""The lists of flags in docs/trainer.md, from the parser, and docs/megatron-lm-flags.md, from foreign_flags.toml:
`python -m megatronapp.trainer.reference` rewrites both."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from megatronapp.trainer import foreign_flags
from megatronapp.trainer.arguments import build_parser
from megatronapp.trainer.config import SECTIONS
from megatronapp.trainer.config_fields import EFFECT, Effect, flag_name
from megatronapp.trainer.plugins.base import discover

BEGIN = "<!-- flags: made by `python -m megatronapp.trainer.reference` -->"
END = "<!-- end of flags -->"
DOCUMENT = Path("docs/trainer.md")
FOREIGN = Path("docs/megatron-lm-flags.md")
FOREIGN_HEAD = """# Megatron-LM's flags

`megatronapp train` takes the flags of Megatron-LM's scripts in `examples/{gpt3,bert,t5,llama}`. Each is honoured (the
list in [trainer.md](trainer.md#all-flags) says how), accepted without effect (the log says so: `flag_without_effect`),
or refused with the way out. Without `--tokenizer-type` the tokenizer is GPT-2's where there are `--vocab-file` and
`--merge-file`, and BERT's in lower case where there is `--vocab-file` alone, as there. What a script of Megatron-LM
trains is said by its name: `pretrain_bert.py` is `--model-type bert`, `pretrain_t5.py` `--model-type t5`. `--load` may
name the folder of `--save`, also before its first checkpoint.

This table is made by `python -m megatronapp.trainer.reference`.

"""
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


def foreign_flags_page() -> str:
    """What becomes of each flag of Megatron-LM's example scripts, and of others that are no settings here."""
    known = foreign_flags.table()
    scripts = {flag: [f for f, flags in known.scripts.items() if flag in flags] for flag in _foreign(known)}
    rows = [f"| `{flag}` | {', '.join(scripts[flag]) or '–'} | {_outcome(flag, known)} |" for flag in sorted(scripts)]
    return FOREIGN_HEAD + "\n".join(["| flag | examples | what becomes of it |", "| --- | --- | --- |", *rows]) + "\n"


def _foreign(known: foreign_flags.ForeignFlags) -> set[str]:
    listed = {flag for flags in known.scripts.values() for flag in flags}
    return listed | {*known.means, *known.in_samples, *known.meaningless, *known.refused, foreign_flags.NO_POSITIONS}


def _outcome(flag: str, known: foreign_flags.ForeignFlags) -> str:
    if flag in known.refused:
        return f"refused: {known.refused[flag]}"
    if flag in known.meaningless:
        return f"no effect: {known.meaningless[flag][1]}"
    if flag in known.means:
        return f"as `{' '.join(known.means[flag])}`"
    if flag in known.in_samples:
        return f"as `{known.in_samples[flag]}`, divided by `--global-batch-size`"
    if flag == foreign_flags.NO_POSITIONS:
        return "as `--position-embedding-type none`; nothing with rotary positions"
    return "honoured"


def rewrite(document: str) -> str:
    """The document with its list of flags made anew."""
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{flag_tables()}\n\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewrite(DOCUMENT.read_text()))
    FOREIGN.write_text(foreign_flags_page())
