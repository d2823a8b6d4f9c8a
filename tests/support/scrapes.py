"""Which labels a Prometheus gives the platform's targets, by the chart's own ServiceMonitor and Services."""

from __future__ import annotations

import functools
import re
from typing import Any

from tests.support.helm import EVERYTHING, of_kind, render

COMPONENT = "app.kubernetes.io/component"


@functools.cache
def target_labels() -> dict[str, dict[str, str]]:
    """By component: the labels of the targets of its Service, as far as the ServiceMonitor sets them."""
    objects = render(EVERYTHING)
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    services = [s for s in of_kind(objects, "Service").values() if selector.items() <= s["metadata"]["labels"].items()]
    scraped = [s for s in services if endpoint["port"] in {port["name"] for port in s["spec"]["ports"]}]
    return {s["metadata"]["labels"][COMPONENT]: _relabeled(s, endpoint["relabelings"]) for s in scraped}


def _relabeled(service: dict[str, Any], rules: list[dict[str, Any]]) -> dict[str, str]:
    """Rules of the default action, which copy: all that the chart uses."""
    known = {f"__meta_kubernetes_service_label_{_meta(k)}": v for k, v in service["metadata"]["labels"].items()}
    found = {}
    for rule in rules:
        assert rule.keys() == {"sourceLabels", "targetLabel"}, "a rule that this does not know"
        found[rule["targetLabel"]] = ";".join(known.get(name, "") for name in rule["sourceLabels"])
    return {name: value for name, value in found.items() if value}


def _meta(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)
