"""The workflows run what can be run by hand: make targets and scripts that are there, of one version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TAG_ALONE = "startsWith(github.ref, 'refs/tags/v')"
VERSIONS = ("pyproject.toml", "native/scan/pyproject.toml", "native/rdma/pyproject.toml")


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


def test_a_tag_of_another_version_is_no_release() -> None:
    done = subprocess.run([ROOT / "scripts/release-version", "v9.9.9"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    for file in (*VERSIONS, "deploy/helm/megatronapp/Chart.yaml"):
        assert f"{file} says " in done.stderr
