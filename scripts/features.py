"""Write the feature tables of docs/trainer.md from scripts/features.toml: `python -m scripts.features`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "scripts/features.toml"
DOCUMENT = ROOT / "docs/trainer.md"
BEGIN = "<!-- features: made by `python -m scripts.features` -->"
END = "<!-- end of features -->"
PAGES = {"accelerate": "Accelerate's page on Megatron-LM", "megatronapp": "MegatronApp's README"}


@dataclass(frozen=True)
class Feature:
    page: str
    feature: str
    here: str
    tests: tuple[str, ...]
    """As pytest takes them: file::function."""


def features() -> list[Feature]:
    """In the order of the pages."""
    pages = tomllib.loads(SOURCE.read_text())
    return [
        Feature(page, row["feature"], row["here"], tuple(row["tests"])) for page, rows in pages.items() for row in rows
    ]


def rewrite(document: str) -> str:
    """The document with its tables made anew."""
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    found = features()
    tables = "\n\n".join(
        "\n".join(_table(title, [feature for feature in found if feature.page == page]))
        for page, title in PAGES.items()
    )
    return f"{head}{BEGIN}\n\n{tables}\n\n{END}{tail}"


def _table(title: str, rows: Sequence[Feature]) -> Iterator[str]:
    yield from (f"### {title}", "", "| feature | here | run by |", "| --- | --- | --- |")
    for row in rows:
        tests = "<br>".join(f"`{test}`" for test in row.tests)
        yield f"| {row.feature} | {row.here} | {tests} |"


if __name__ == "__main__":
    DOCUMENT.write_text(rewrite(DOCUMENT.read_text()))
