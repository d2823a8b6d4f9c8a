"""The alert rules do what the findings ask for: promtool runs their own tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy/helm/megatronapp/files/alerts"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (make setup-system)")
    return subprocess.run([found, *arguments], cwd=ALERTS, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [("check", "rules", "findings.yaml"), ("test", "rules", "findings.test.yaml")])
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    result = promtool(*command)

    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_runbook_and_a_severity() -> None:
    rules = yaml.safe_load((ALERTS / "findings.yaml").read_text())["groups"][0]["rules"]

    for rule in rules:
        assert (ROOT / rule["annotations"]["runbook"]).is_file(), rule["alert"]
        assert rule["labels"]["severity"] in {"P1", "P2", "ticket"}
