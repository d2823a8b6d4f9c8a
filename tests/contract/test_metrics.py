"""One list of metric names: the services expose exactly it, and alerts and dashboards use nothing else of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.core.findings_store.store import FindingsStoreMetrics
from megatronapp.core.metrics import METRICS, Metric
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.operator.metrics import Metrics as OperatorMetrics
from megatronapp.operator.metrics import Phases
from tests.support.helm import CHART, ROOT
from tests.support.promql import base_name, selectors
from tests.support.scrapes import target_labels

OURS = {metric.name: metric for metrics in METRICS.values() for metric in metrics}
OUTSIDE: dict[str, list[str]] = yaml.safe_load((CHART / "files/exporters.yaml").read_text())
ADDED_BY_SCRAPES = {"instance", "job", "le"}.union(*target_labels().values())
RECORDED = {
    rule["record"]
    for path in (CHART / "files/alerts").glob("*.yaml")
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}


def operator_metrics(registry: CollectorRegistry) -> None:
    OperatorMetrics(registry)
    Phases(registry, list)


SERVICES: dict[str, Callable[[CollectorRegistry], object]] = {
    "collector": CollectorMetrics,
    "detector": lambda registry: Exposition(registry, Engines(), 16),
    "findings-store": FindingsStoreMetrics,
    "gateway": GatewayMetrics,
    "operator": operator_metrics,
}


def exposed(registry: CollectorRegistry) -> set[Metric]:
    """What a registry exposes; label names are the client library's own notes, there may be no series yet."""
    found = set()
    for collector in registry._collector_to_names:
        for family in collector.collect():
            named: Any = collector if hasattr(collector, "_labelnames") else family
            suffix = "_total" if family.type == "counter" else ""
            found.add(Metric(family.name + suffix, family.type, tuple(named._labelnames), family.documentation))
    return found


@pytest.mark.parametrize("service", METRICS)
def test_a_service_exposes_exactly_its_list(service: str) -> None:
    registry = CollectorRegistry()
    SERVICES[service](registry)

    assert exposed(registry) == set(METRICS[service])


def test_names_follow_prometheus_habits() -> None:
    for metric in OURS.values():
        assert metric.name.startswith("megatronapp_")
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert "job" not in metric.labels, "`job` belongs to Prometheus"
        assert ("training_job" in metric.labels) == ("namespace" in metric.labels)


def queries() -> Iterator[tuple[str, str]]:
    """(where it stands, PromQL) of all alerts, recording rules and panels."""
    for path in sorted((CHART / "files/alerts").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{path.stem}/{rule.get('alert') or rule['record']}", rule["expr"]
    for path in sorted((CHART / "files/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}/{panel['title']}", _without_variables(target["expr"])


def _without_variables(query: str) -> str:
    return query.replace("$__rate_interval", "5m").replace("$__range", "1h")


QUERIES = sorted(set(queries()))


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_query_uses_only_names_and_labels_of_the_list(where: str, query: str) -> None:
    outside = {name for names in OUTSIDE.values() for name in names} | RECORDED
    for selected in selectors(query):
        if selected.name == "up" or selected.name in outside:
            continue
        name = selected.name if selected.name in OURS else base_name(selected.name)
        assert name in OURS, f"{selected.name} is in neither core/metrics.py nor files/exporters.yaml"
        unknown = selected.labels - set(OURS[name].labels) - ADDED_BY_SCRAPES
        assert not unknown, f"{name} has no label {unknown}"


def test_every_outside_name_is_used() -> None:
    used = {selected.name for _, query in QUERIES for selected in selectors(query)}

    assert {name for names in OUTSIDE.values() for name in names} <= used


def test_the_documentation_names_every_metric_and_exporter() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    monitoring = (ROOT / "docs/monitoring.md").read_text()

    assert {name for name in OURS if f"`{name}`" not in text} == set()
    assert {exporter for exporter in OUTSIDE if exporter not in monitoring} == set()
