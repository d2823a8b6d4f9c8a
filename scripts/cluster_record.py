"""What `make e2e-cluster` has played, summed up: docs/cluster-tests.md, without which no version is released.

    python -m scripts.cluster_record REPORT

It is written only when every test of the report has passed. Else it says which have not, and ends with 1: a test that
was skipped has shown nothing, whatever its reason.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path("docs/cluster-tests.md")


@dataclass(frozen=True)
class Played:
    file: str
    name: str
    seconds: float
    outcome: str
    """passed, failed or skipped; the latter two with the reason."""


def played(report: Path) -> Iterator[Played]:
    """Raises SystemExit where there is no report: pytest has not come so far."""
    try:
        cases = ElementTree.parse(report).iter("testcase")  # noqa: S314  our own report
    except (OSError, ElementTree.ParseError) as error:
        raise SystemExit(f"cluster_record: no report: {error}") from error
    for case in cases:
        file = case.get("classname", "").replace(".", "/") + ".py"
        yield Played(file, case.get("name", ""), float(case.get("time", 0)), _outcome(case))


def _outcome(case: ElementTree.Element) -> str:
    for tag, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            reason = (found.get("message") or "").strip().splitlines()
            return f"{word}: {reason[0]:.200}" if reason else word
    return "passed"


def record(tests: list[Played], version: str, commit: str, day: str) -> str:
    minutes = sum(test.seconds for test in tests) / 60
    lines = [
        f"# Cluster tests of {version}",
        "",
        f"`make e2e-cluster` on {day}, at commit {commit}: all {len(tests)} tests passed, in {minutes:.0f} minutes.",
        "",
        "| file | tests | seconds |",
        "|---|---|---|",
    ]
    for file in sorted({test.file for test in tests}):
        own = [test for test in tests if test.file == file]
        lines.append(f"| `{file}` | {len(own)} | {sum(test.seconds for test in own):.0f} |")
    return "\n".join(lines) + "\n"


def main(report: Path, root: Path = ROOT) -> int:
    tests = list(played(report))
    missed = [test for test in tests if test.outcome != "passed"]
    for test in missed:
        print(f"{test.file}::{test.name}: {test.outcome}")
    print(f"{len(tests) - len(missed)} of {len(tests)} cluster tests passed")
    if missed or not tests:
        print(f"{RECORD} is not written: a release needs all of them")
        return 1
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    (root / RECORD).write_text(record(tests, version, commit or "unknown", f"{datetime.now(UTC):%Y-%m-%d}"))
    print(f"{RECORD} is written: commit it with the version")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
