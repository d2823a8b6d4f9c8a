"""Every alert fires on what it is for, with its labels, and keeps quiet on what only looks like it, by promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import CHART, ROOT
from tests.support.scrapes import target_labels

ALERTS = CHART / "files/alerts"
GROUPS = sorted(path.stem for path in ALERTS.glob("*.yaml"))
NEWS = 'ALERTS{alertname!="Watchdog"}'
"""Watchdog always fires, so that its silence is heard."""
CASES = Path(__file__).parent / "cases"


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    assert program, "promtool is not installed; run: make setup-system"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules(group: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((ALERTS / f"{group}.yaml").read_text())["groups"]
    return [rule for found in groups for rule in found["rules"] if "alert" in rule]


def cases(group: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((CASES / f"{group}.yaml").read_text()))


def scraped(series: str) -> str:
    """A service's `up` with the labels that the chart's ServiceMonitor gives it; other series as they are."""
    found = re.fullmatch(r'up\{component="(\w+)"(.*)\}', series)
    if found is None:
        return series
    labels = ",".join(f'{name}="{value}"' for name, value in target_labels()[found[1]].items())
    return f"up{{{labels}{found[2]}}}"


def _test(case: dict[str, Any], series: dict[str, str], fires: bool) -> dict[str, Any]:
    """A promtool test: at the end exactly one alert of this name fires with the labels, or none."""
    labels = case["labels"] | {"alertname": case["alert"]}
    ours = f'ALERTS{{alertname="{case["alert"]}", alertstate="firing"}}'
    expected = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return {
        "name": f"{case['alert']} {'fires' if fires else 'keeps quiet'}",
        "interval": "1m",
        "input_series": [{"series": scraped(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count by ({', '.join(labels)}) ({ours})",
                "eval_time": case.get("at", "59m"),
                "exp_samples": [{"labels": f"{{{expected}}}", "value": 1}] if fires else [],
            }
        ],
    }


@pytest.mark.parametrize("group", GROUPS)
def test_the_alerts_do_what_they_are_for(group: str, tmp_path: Path) -> None:
    tests = [
        _test(case, case[key], fires)
        for case in cases(group)
        for key, fires in (("series", True), ("quiet", False))
        if key in case
    ]
    file = tmp_path / f"{group}.test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS / f"{group}.yaml")], "evaluation_interval": "1m", "tests": tests})
    )

    promtool("check", "rules", str(ALERTS / f"{group}.yaml"))
    promtool("test", "rules", str(file))


def test_on_a_healthy_platform_nothing_is_told(tmp_path: Path) -> None:
    """All services answer, as the chart has them scraped, an operator leads, and nothing else is known."""
    up = {
        "up{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}": "1x60" for labels in target_labels().values()
    }
    series = [
        {"series": name, "values": values} for name, values in {**up, "megatronapp_operator_leader": "1x60"}.items()
    ]
    quiet = {"interval": "1m", "input_series": series}
    quiet["promql_expr_test"] = [{"expr": NEWS, "eval_time": at, "exp_samples": []} for at in ("5m", "59m")]
    file = tmp_path / "healthy.test.yaml"
    rule_files = [str(ALERTS / f"{group}.yaml") for group in GROUPS]
    file.write_text(yaml.safe_dump({"rule_files": rule_files, "evaluation_interval": "1m", "tests": [quiet]}))

    promtool("test", "rules", str(file))


@pytest.mark.parametrize("group", GROUPS)
def test_every_alert_is_tried(group: str) -> None:
    assert {rule["alert"] for rule in rules(group)} == {case["alert"] for case in cases(group)}


@pytest.mark.parametrize("group", GROUPS)
def test_every_alert_says_what_is_wrong_and_what_to_do(group: str) -> None:
    for rule in rules(group):
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
        runbook = (ROOT / rule["annotations"]["runbook"]).read_text()
        assert runbook.startswith(f"# {rule['alert']}\n")
        assert "## What to do" in runbook


@pytest.mark.parametrize("group", GROUPS)
def test_every_alert_has_a_level_and_a_scope(group: str) -> None:
    for rule in rules(group):
        level = rule["labels"]["severity"]
        assert level in {"P0", "P1", "P2", "P3"} or level == "{{ if ge $value 1.05 }}P1{{ else }}P2{{ end }}", rule[
            "alert"
        ]
        assert rule["labels"]["scope"] in {
            "job",
            "platform",
            "node",
            "gpu",
            "network",
            "storage",
            "cluster",
            "monitoring",
        }


def test_every_runbook_belongs_to_an_alert() -> None:
    named = {rule["alert"] for group in GROUPS for rule in rules(group)}

    assert {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")} == named
