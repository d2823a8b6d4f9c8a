"""Panels and dashboards in Grafana's JSON (schema 39), as few words as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
JOB = 'namespace=~"$namespace", training_job=~"$training_job"'
"""Selects the chosen jobs."""


@dataclass(frozen=True)
class Panel:
    """What it shows, in which unit (Grafana's names), and where its colour turns (value, colour)."""

    title: str
    queries: Sequence[tuple[str, str]]
    """(PromQL, legend)."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    thresholds: Sequence[tuple[float, str]] = ()
    description: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def stat(title: str, query: str, **more: Any) -> Panel:
    """One number."""
    return Panel(title, [(query, "")], kind="stat", width=4, height=4, **more)


def table(title: str, query: str, **more: Any) -> Panel:
    """The labels and value of each series, now."""
    return Panel(title, [(query, "")], kind="table", **more)


def quantile(q: float, histogram: str, by: str, where: str = "") -> str:
    """A quantile of a histogram over the last interval."""
    grouped = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({q}, sum by ({grouped}) (rate({histogram}_bucket{{{where}}}[$__rate_interval])))"


def dashboard(
    name: str, title: str, panels: Sequence[Panel], variables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Panels from left to right, a new row where one does not fit."""
    placed, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, row = 0, y + row, 0
        placed.append(_panel(panel, number, x, y))
        x, row = x + panel.width, max(row, panel.height)
    return {
        "uid": f"megatronapp-{name}",
        "title": f"MegatronApp / {title}",
        "tags": ["megatronapp"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "timezone": "",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "tags": ["megatronapp"],
                "title": "MegatronApp",
                "keepTime": True,
                "asDropdown": True,
            }
        ],
        "templating": {"list": [_datasource(), *variables]},
        "panels": placed,
    }


def variable(name: str, query: str) -> dict[str, Any]:
    """A choice of a label's values; `query` is Grafana's label_values(…)."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 3,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind in {"stat", "table"}
    targets = [
        {"refId": chr(65 + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
        | {"instant": instant, "range": not instant, "format": "table" if panel.kind == "table" else "time_series"}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    steps = [
        {"color": "green", "value": None},
        *({"color": color, "value": value} for value, color in panel.thresholds),
    ]
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": panel.options,
    }
    if panel.kind == "table":
        hidden = {"Time": True, "__name__": True, "instance": True, "job": True, "component": True, "part_of": True}
        found["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return found | ({"description": panel.description} if panel.description else {})
