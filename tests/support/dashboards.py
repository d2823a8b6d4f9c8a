"""What the dashboards' panels ask a Prometheus."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.helm import CHART

QUERIES = [
    (f"{path.stem}/{panel['title']}", target["expr"])
    for path in sorted((CHART / "files/dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel["targets"]
]
"""(dashboard and panel, query)."""


def ask(client: httpx.Client, query: str, rate_interval: str = "10s") -> list[dict[str, Any]]:
    """The series that a panel's query finds now, whatever namespace, job, rank and node are chosen."""
    for variable in ("namespace", "training_job", "rank", "node"):
        query = query.replace(f"${variable}", ".*")
    query = query.replace("$__rate_interval", rate_interval)
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])
