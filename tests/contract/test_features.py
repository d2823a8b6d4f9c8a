"""The feature tables of docs/trainer.md: as generated, and every test that they name is there and would run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import features

NAMED = sorted({test for feature in features.features() for test in feature.tests})


def functions(file: Path) -> set[str]:
    """Of a module: its tests, those aside that are always skipped."""
    found = [
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {node.name for node in found if not any("mark.skip(" in ast.unparse(each) for each in node.decorator_list)}


def test_the_tables_are_made_from_the_list() -> None:
    document = features.DOCUMENT.read_text()

    assert features.rewrite(document) == document, "run `make reference`"


def test_every_feature_names_a_test_that_is_there() -> None:
    missing = [
        test for test in NAMED if test.partition("::")[2] not in functions(features.ROOT / test.partition("::")[0])
    ]

    assert missing == []
    assert all(feature.tests for feature in features.features())
    assert {feature.page for feature in features.features()} == set(features.PAGES)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_pytest_collects_every_test_that_is_named() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", *NAMED]

    done = subprocess.run(command, cwd=features.ROOT, capture_output=True, text=True, check=False)

    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert sorted(set(NAMED) - collected) == [], done.stdout[-2000:] + done.stderr[-2000:]
