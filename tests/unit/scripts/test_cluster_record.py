"""What a run of all cluster tests leaves: a record where all have passed, else which have not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.cluster_record import RECORD, main

ROOT = Path(__file__).resolve().parents[3]
LIFE, CHAOS = "tests.e2e.kubernetes.test_life", "tests.e2e.kubernetes.test_chaos"


def case(module: str, name: str, inside: str = "") -> str:
    return f'<testcase classname="{module}" name="{name}" time="90">{inside}</testcase>'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    return tmp_path


def summed_up(root: Path, *cases: str) -> int:
    report = root / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return main(report, root)


def test_a_run_in_which_all_have_passed_is_recorded_by_file(root: Path) -> None:
    assert summed_up(root, case(LIFE, "test_a"), case(LIFE, "test_b"), case(CHAOS, "test_c")) == 0

    text = (root / RECORD).read_text()
    assert text.startswith("# Cluster tests of 1.2.3\n")
    assert "all 3 tests passed, in 4 minutes" in text
    assert "| `tests/e2e/kubernetes/test_life.py` | 2 | 180 |" in text


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ('<failure message="it is&#10;not so"/>', "failed: it is"),
        ('<error message=""/>', "failed"),
        ('<skipped message="no Kubernetes"/>', "skipped: no Kubernetes"),
    ],
)
def test_what_has_not_passed_is_told_and_nothing_is_recorded(
    root: Path, capsys: pytest.CaptureFixture[str], inside: str, told: str
) -> None:
    assert summed_up(root, case(LIFE, "test_a"), case(CHAOS, "test_c", inside)) == 1

    assert f"tests/e2e/kubernetes/test_chaos.py::test_c: {told}\n" in capsys.readouterr().out
    assert not (root / RECORD).exists()


def test_a_run_without_tests_or_report_is_none(root: Path) -> None:
    assert summed_up(root) == 1
    with pytest.raises(SystemExit, match="no report"):
        main(root / "nowhere.xml", root)


def test_the_target_plays_all_of_them_and_the_documents_name_each_file() -> None:
    recipe = re.search(r"^e2e-cluster:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = {
        path.name for path in (ROOT / "tests/e2e/kubernetes").glob("test_*.py") if "mark.cluster" in path.read_text()
    }
    documented = set(re.findall(r"^\| `(test_\w+\.py)` \|", (ROOT / "docs/operator.md").read_text(), re.MULTILINE))

    assert recipe
    assert re.findall(r"pytest (.+)", recipe[1]) == ["-m cluster tests/e2e --junit-xml=$(CLUSTER_REPORT)"]
    assert files - documented == set()
