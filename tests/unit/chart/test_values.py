"""Values: what fits renders for every file of ci/, what does not is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import CHART, HelmError, helm, render

CASES = sorted((CHART / "ci").glob("*-values.yaml"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_chart_lints(case: Path) -> None:
    said = helm("lint", "--strict", str(CHART), "--values", str(case))

    assert "0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"collector": {"replica": 2}}, "replica"),
        ({"collector": {"replicas": 0}}, "/collector/replicas"),
        ({"collector": {"retention": {"bytes": 16_106_127_360}}}, "/collector/retention/bytes"),
        ({"collector": {"persistence": {"size": "20 GB"}}}, "/collector/persistence/size"),
        ({"gatway": {}}, "gatway"),
        ({"gateway": {"image": {"digest": "latest"}}}, "/gateway/image/digest"),
        ({"gateway": {"allowedOrigins": ["https://a/b"]}}, "/gateway/allowedOrigins/0"),
        ({"logging": {"level": "loud"}}, "/logging/level"),
        ({"watchNamespaces": ["Team"]}, "/watchNamespaces/0"),
        ({"redis": {"enabled": True}, "externalRedis": {"url": "redis://x"}}, "/externalRedis/url"),
        ({"redis": {"enabled": False}, "externalRedis": {"url": "localhost"}}, "/externalRedis/url"),
        ({"networkPolicy": {"apiServer": {"ports": ["https"]}}}, "/networkPolicy/apiServer/ports/0"),
        ({"networkPolicy": {"receivers": {"cidrs": ["everywhere"]}}}, "/networkPolicy/receivers/cidrs/0"),
        ({"monitoring": {"prometheusRule": {"groups": ["gpus"]}}}, "/monitoring/prometheusRule/groups/0"),
        ({"operator": {"jobs": {"podSecurity": "none"}}}, "/operator/jobs/podSecurity"),
        ({"operator": {"jobs": {"secrets": ["a*b"]}}}, "/operator/jobs/secrets/0"),
        ({"networkPolicy": {"dns": {"cidrs": ["10.0.0.10"]}}}, "/networkPolicy/dns/cidrs/0"),
        ({"notifications": {"phone": {"level": "P4"}}}, "/notifications/phone/level"),
        ({"notifications": {"report": {"weekday": "fri"}}}, "/notifications/report/weekday"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(values: dict[str, Any], key: str) -> None:
    with pytest.raises(HelmError, match=key):
        render(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"redis": {"enabled": False}}, "externalRedis.url or externalRedis.existingSecret is needed"),
        ({"notifications": {"slack": {"enabled": True}}}, "notifications.existingSecret is needed"),
        ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.hosts is needed"),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 7}}},
            "gateway.autoscaling.minReplicas is greater than gateway.autoscaling.maxReplicas",
        ),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_said(values: dict[str, Any], says: str) -> None:
    with pytest.raises(HelmError, match=says):
        render(values)


def test_the_schema_knows_every_value() -> None:
    """Written in `values.yaml` means described in the schema: the schema allows nothing else."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert render(values)


def test_an_old_kubernetes_is_refused() -> None:
    with pytest.raises(HelmError, match="kubeVersion"):
        render({}, "--kube-version", "1.28.0")


def test_the_notes_say_what_to_do_next() -> None:
    # `helm template` prints no notes; a dry run on the client does.
    said = helm("install", "demo", str(CHART), "--namespace", "platform", "--dry-run=client")

    for part in ("helm -n platform test demo", "port-forward svc/demo-megatronapp-gateway", "No alert will reach you"):
        assert part in said


@pytest.mark.parametrize("monitored", ["true", "false"])
def test_the_notes_name_what_alertmanager_needs_to_pass_on_alerts_of_other_namespaces(monitored: str) -> None:
    switches = ",".join(f"monitoring.{part}.enabled={monitored}" for part in ("prometheusRule", "alertmanagerConfig"))

    said = helm("install", "demo", str(CHART), "--dry-run=client", "--set", switches)

    assert "alertmanagerConfigMatcherStrategy: {type: None}" in said
