"""Who writes a plug-in finds every hook: in the table of docs/plugins.md and in the order that base.py's head gives."""

import re
from pathlib import Path

from megatronapp.trainer.plugins import base

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {name for name, value in vars(base.Plugin).items() if not name.startswith("_") and hasattr(value, "__get__")}


def test_the_document_lists_exactly_the_hooks() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / "docs/plugins.md").read_text(), re.M)

    assert {name for row in rows for name in re.findall(r"\w+", row)} == HOOKS


def test_the_order_names_every_hook() -> None:
    order = "".join(line for line in (base.__doc__ or "").splitlines() if line.startswith("    "))

    assert HOOKS.issubset(re.findall(r"\w+", order))
