"""Every panel shows something: its queries run on a real Prometheus that scrapes every metric there is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

from megatronapp.core.metrics import METRICS, Metric
from tests.support.alertmanager import prometheus
from tests.support.dashboards import QUERIES, ask
from tests.support.helm import CHART
from tests.support.ports import free_port
from tests.support.scrapes import target_labels

SCRAPES = 4
VALUES = {
    "namespace": "ml", "training_job": "gpt", "rank": "5", "node": "n1", "gpu_uuid": "GPU-5", "kind": "slow_gpu",
    "cause": "thermal", "page": "true", "src_node": "n1", "dst_node": "n2", "scope": "used", "quantile": "0.9",
    "status": "200", "level": "P1", "phase": "Running",
}  # fmt: skip
"""Label values that queries compare or join; any other label's value is its name."""
OUTSIDE_LABELS = {
    "dcgm-exporter": {"Hostname": "n1", "UUID": "GPU-5", "gpu": "5"},
    "node_exporter": {"nodename": "n1", "device": "mlx5_0", "port": "1"},
}


def line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}\n"


def samples(metric: Metric, scrape: int) -> str:
    """One series of a metric as it looks at its n-th scrape: counters grow, gauges stay."""
    labels = {name: VALUES.get(name, name) for name in metric.labels}
    if metric.type != "histogram":
        return line(metric.name, labels, 10.0 * scrape if metric.type == "counter" else 1.0)
    buckets = [line(f"{metric.name}_bucket", labels | {"le": le}, 10.0 * scrape) for le in ("1.0", "+Inf")]
    return "".join([*buckets, line(f"{metric.name}_count", labels, 10.0 * scrape)])


def exposition(service: str, scrape: int) -> str:
    if service in METRICS:
        return "".join(samples(metric, scrape) for metric in METRICS[service])
    exporters: dict[str, list[str]] = yaml.safe_load((CHART / "files/exporters.yaml").read_text())
    parts = []
    for exporter, names in exporters.items():
        labels = OUTSIDE_LABELS.get(exporter, {})
        parts += [line(name, labels, 10.0 * scrape if name.endswith("_total") else 1.0) for name in names]
    return "".join(parts)


class Exporter(BaseHTTPRequestHandler):
    """`/<service>` answers with everything that the service exposes."""

    scrapes: dict[str, int]

    def do_GET(self) -> None:
        service = self.path.strip("/")
        self.scrapes[service] = self.scrapes.get(service, 0) + 1
        body = exposition(service, self.scrapes[service]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Scrapes are no news."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    Exporter.scrapes = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    Thread(target=server.serve_forever, daemon=True).start()
    target = f"127.0.0.1:{server.server_port}"
    scrapes = [
        {
            "job_name": service,
            "metrics_path": f"/{service}",
            "honor_labels": True,
            "static_configs": [{"targets": [target], "labels": target_labels().get(service, {})}],
        }
        for service in (*METRICS, "outside")
    ]
    config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": scrapes}
    with prometheus(config, free_port(), tmp_path_factory.mktemp("prometheus")) as client:
        while len(Exporter.scrapes) <= len(METRICS) or min(Exporter.scrapes.values()) < SCRAPES:
            time.sleep(0.1)
        yield client
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_the_panel_shows_something(running: httpx.Client, where: str, query: str) -> None:
    assert ask(running, query)


@pytest.mark.parametrize(("where", "query"), [found for found in QUERIES if "up{" in found[1]])
def test_the_panel_counts_the_services_that_answer(running: httpx.Client, where: str, query: str) -> None:
    """It shows 0 where it finds none, so that showing something is not enough."""
    (series,) = ask(running, query)

    assert series["value"][1] == "1"
