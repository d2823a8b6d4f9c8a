"""What documents refer to is there: files, headings, benchmarks, tests, make targets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
DOCUMENTS = sorted(ROOT / name for name in LISTED.split())
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
BENCHMARK = re.compile(r"python -m\s(bench(?:\.\w+)*)")
TEST = re.compile(r"`[^`\n]*?(tests/[\w./-]+\.py)")
TARGET = re.compile(r"`make ([a-z][a-z0-9-]+)")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))


@cache
def anchors(document: Path) -> frozenset[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in shown)


def broken(document: Path) -> Iterator[str]:
    for path, anchor in LINK.findall(FENCE.sub("", document.read_text())):
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{path}#{anchor}" if anchor else path


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    assert list(broken(document)) == []


@each_document
def test_every_command_and_test_that_is_named_is_there(document: Path) -> None:
    text = document.read_text()
    makefile = (ROOT / "Makefile").read_text()

    modules = [ROOT / name.replace(".", "/") for name in BENCHMARK.findall(text)]
    assert [str(module) for module in modules if not (module.is_dir() or module.with_suffix(".py").is_file())] == []
    places = (ROOT, document.parent)
    assert [name for name in TEST.findall(text) if not any((place / name).is_file() for place in places)] == []
    assert [name for name in TARGET.findall(text) if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
