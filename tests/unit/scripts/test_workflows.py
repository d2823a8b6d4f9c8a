"""The workflows run what can be run by hand: make targets and scripts that are there, of one version."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.cluster_record import RECORD

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TAG_ALONE = "startsWith(github.ref, 'refs/tags/v')"
VERSIONS = ("pyproject.toml", "native/scan/pyproject.toml", "native/rdma/pyproject.toml", "native/nccl/pyproject.toml")


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_every_command_of_ours_is_there(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    ran = commands(workflow)

    for command in ran:
        for target in re.findall(r"^make ([a-z0-9-]+)", command):
            assert target in targets
        for script in re.findall(r"^((?:scripts|\.ci)/\S+)", command):
            assert (ROOT / script).stat().st_mode & 0o111
    assert any(command.startswith(("make ", ".ci/run")) for command in ran)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_each_can_be_started_by_hand(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())

    assert "workflow_dispatch" in document[True], "YAML reads the key `on` as true"


PUBLISHES = re.compile(r"login|push|PUSH=|gh release|pypi-publish")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_only_a_tag_publishes(workflow: Path) -> None:
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        for step in job.get("steps", ()):
            if PUBLISHES.search(f"{step.get('run')} {step.get('uses')}"):
                assert TAG_ALONE in (job.get("if"), step.get("if")), step


def test_all_parts_are_of_one_version() -> None:
    found = {re.findall(r'^version = "(.+)"', (ROOT / file).read_text(), re.MULTILINE)[0] for file in VERSIONS}
    chart = yaml.safe_load((ROOT / "deploy/helm/megatronapp/Chart.yaml").read_text())

    assert {chart["version"], chart["appVersion"], *found} == {chart["version"]}


CHART = "deploy/helm/megatronapp/Chart.yaml"
VERSION = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What scripts/release-version reads, of a version that is ready to be released."""
    for name in (*VERSIONS, CHART, "scripts/release-version"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION}\n")
    life = tmp_path / "tests/e2e/kubernetes/test_life.py"
    life.parent.mkdir(parents=True)
    life.write_text("pytestmark = [pytest.mark.cluster]\n")
    (tmp_path / RECORD).parent.mkdir(exist_ok=True)
    (tmp_path / RECORD).write_text(f"# Cluster tests of {VERSION}\n\n| `{life.relative_to(tmp_path)}` | 30 | 400 |\n")
    return tmp_path


def refused(checkout: Path, tag: str) -> list[str]:
    """What the script finds wrong, a line each."""
    done = subprocess.run([checkout / "scripts/release-version", tag], capture_output=True, text=True, check=False)
    assert done.returncode == bool(done.stderr)
    return done.stderr.splitlines()


def test_a_tag_of_the_version_that_every_part_has_is_a_release(checkout: Path) -> None:
    assert refused(checkout, f"v{VERSION}") == []


def test_a_tag_of_another_version_is_no_release(checkout: Path) -> None:
    parts = [*VERSIONS, f"version of {CHART}", f"appVersion of {CHART}"]

    assert refused(checkout, "v9.9.9") == [
        *(f"release-version: {part} says {VERSION}, the tag says 9.9.9" for part in parts),
        "release-version: CHANGELOG.md has no section 9.9.9",
        f"release-version: {RECORD} is not of 9.9.9; make e2e-cluster writes it when all of them have passed",
    ]


def test_a_version_whose_cluster_tests_were_not_all_played_is_no_release(checkout: Path) -> None:
    new = "tests/e2e/kubernetes/test_new.py"
    (checkout / new).write_text("@pytest.mark.cluster\n")

    assert refused(checkout, f"v{VERSION}") == [f"release-version: {RECORD} has not {new}"]

    (checkout / RECORD).unlink()
    assert refused(checkout, f"v{VERSION}") == [
        f"release-version: {RECORD} is not of {VERSION}; make e2e-cluster writes it when all of them have passed"
    ]


def test_nothing_of_a_release_is_made_before_its_version_is_found_right() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    checks = [step for step in jobs["version"]["steps"] if "scripts/release-version" in step.get("run", "")]

    assert [(step["run"], step["if"]) for step in checks] == [('scripts/release-version "$GITHUB_REF_NAME"', TAG_ALONE)]
    assert {name for name in jobs if "version" not in _waited_for(name, jobs)} == {"version"}


def _waited_for(name: str, jobs: dict[str, Any]) -> set[str]:
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(_waited_for(each, jobs) for each in direct))


@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_a_chart_that_stayed_behind_is_no_release(checkout: Path, key: str) -> None:
    chart = checkout / CHART
    chart.write_text(re.sub(rf"^{key}: .*", f"{key}: 0.0.1", chart.read_text(), flags=re.MULTILINE))

    assert refused(checkout, f"v{VERSION}") == [f"release-version: {key} of {CHART} says 0.0.1, the tag says {VERSION}"]


def test_only_a_newer_push_to_a_pull_request_cancels_a_run() -> None:
    concurrency = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["concurrency"]

    assert concurrency["group"] == "${{ github.workflow }}-ci-${{ github.event.pull_request.number || github.run_id }}"
    assert concurrency["cancel-in-progress"] == "${{ github.event_name == 'pull_request' }}"
