"""The Prometheus and the Alertmanager of the cluster's prometheus-operator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.support.cluster import Cluster

PROXY = "/api/v1/namespaces/monitoring/services"


@dataclass(frozen=True)
class Monitoring:
    cluster: Cluster

    def series(self, query: str) -> list[dict[str, str]]:
        """Labels of what a query finds now."""
        path = f"{PROXY}/prometheus-operated:9090/proxy/api/v1/query?query={quote(query)}"
        found = json.loads(self.cluster.kubectl("get", "--raw", path))
        return [series["metric"] for series in found["data"]["result"]]

    def alerts(self) -> list[dict[str, Any]]:
        """What Alertmanager has received and not seen resolved."""
        path = f"{PROXY}/alertmanager-operated:9093/proxy/api/v2/alerts"
        found: list[dict[str, Any]] = json.loads(self.cluster.kubectl("get", "--raw", path))
        return found

    def receivers(self) -> set[str]:
        """Whom Alertmanager tells, NAMESPACE/CONFIG/RECEIVER."""
        path = f"{PROXY}/alertmanager-operated:9093/proxy/api/v2/receivers"
        return {found["name"] for found in json.loads(self.cluster.kubectl("get", "--raw", path))}


def start(cluster: Cluster) -> Monitoring | None:
    """The test cluster's own, made if need be; None on a cluster without."""
    if cluster.is_test_cluster and not cluster.list("namespaces", "kubernetes.io/metadata.name=monitoring"):
        cluster.tool("monitoring")
    if not cluster.list("namespaces", "kubernetes.io/metadata.name=monitoring"):
        return None
    # Alerts carry the namespace of the job, which is not the release's: the default strategy would drop them.
    strategy = {"spec": {"alertmanagerConfigMatcherStrategy": {"type": "None"}}}
    own = Cluster(cluster.kubeconfig, "monitoring")
    own.kubectl("patch", "alertmanager", "test", "--type=merge", "-p", json.dumps(strategy))
    return Monitoring(own)
