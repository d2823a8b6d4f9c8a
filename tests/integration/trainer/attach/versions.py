"""What `megatronapp attach` sees of which versions: what tests noted, as the table of docs/attach.md.

    python -m tests.integration.trainer.attach.versions FILE

Rows of versions of torch that were not run stay as they are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

VARIABLE = "MEGATRONAPP_ATTACH_VERSIONS"
"""A file to which each program that was seen whole adds a line."""
CORES = ("0.14.0", "0.15.0", "0.16.1")
PROGRAMS = {"ddp": "DDP", "fsdp2": "FSDP2", **{core: f"megatron-core {core}" for core in CORES}}
DOCUMENT = Path(__file__).resolve().parents[4] / "docs/attach.md"
BEGIN = "<!-- versions: made by `make attach-versions` -->"
END = "<!-- end of versions -->"
NOT_RUN = "not run"


def note(torch: str, python: str, program: str, seen: str) -> None:
    if file := os.environ.get(VARIABLE):
        with Path(file).open("a") as lines:
            lines.write(json.dumps({"torch": torch, "python": python, "program": program, "seen": seen}) + "\n")


def rewrite(document: str, lines: Iterable[str]) -> str:
    """The document with these lines' rows made anew."""
    head, _, rest = document.partition(BEGIN)
    table, _, tail = rest.partition(END)
    rows = _rows(table)
    for noted in map(json.loads, lines):
        row = rows.setdefault(noted["torch"], {})
        row |= {"Python": noted["python"], PROGRAMS[noted["program"]]: noted["seen"]}
    return f"{head}{BEGIN}\n\n{_table(rows)}\n\n{END}{tail}"


def _rows(table: str) -> dict[str, dict[str, str]]:
    """By the version of torch, what the columns say."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n") if line.startswith("|")
    ]
    if not cells:
        return {}
    names, _, *rows = cells
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


def _table(rows: Mapping[str, Mapping[str, str]]) -> str:
    columns = ["Python", *PROGRAMS.values()]
    body = [
        [torch, *(rows[torch].get(column, NOT_RUN) for column in columns)] for torch in sorted(rows, key=_by_version)
    ]
    cells = [["torch", *columns], ["---"] * (len(columns) + 1), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _by_version(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main(arguments: Sequence[str]) -> int:
    DOCUMENT.write_text(rewrite(DOCUMENT.read_text(), Path(arguments[0]).read_text().splitlines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
