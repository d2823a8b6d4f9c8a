"""One fault is one page: a real Alertmanager groups and inhibits what a fault makes fire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.alertmanager import alertmanager
from tests.support.helm import CHART
from tests.support.ports import free_port

JOB = {"namespace": "ml", "training_job": "gpt", "scope": "job"}
OTHER = {"namespace": "ml", "training_job": "bert", "scope": "job"}


def alert(alertname: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": alertname, "severity": severity, **labels}


FAULTS = {
    "eight ranks of a slow node": (
        [alert("SlowGPU", "P1", **JOB, node="n1", rank=str(rank), gpu_uuid=f"GPU-{rank}") for rank in range(8)],
        {"SlowGPU"},
    ),
    "a hot GPU that slows a job": (
        [
            alert("SlowGPU", "P1", **JOB, node="n1", rank="5", gpu_uuid="GPU-5"),
            alert("GPUTooHot", "P2", scope="gpu", node="n1", gpu_uuid="GPU-5"),
            alert("GPUThrottled", "P2", scope="gpu", node="n1", gpu_uuid="GPU-5"),
            alert("FanFailed", "P2", scope="node", node="n1", name="FAN3"),
            alert("UnknownSlowness", "P2", **JOB, node="n2", rank="9"),
        ],
        {"SlowGPU"},
    ),
    "a GPU with a memory fault": (
        [
            alert("TelemetryFault", "P1", scope="gpu", node="n1", gpu="5", gpu_uuid="GPU-5"),
            alert("SlowGPU", "P1", **JOB, node="n1", rank="5", gpu_uuid="GPU-5"),
            alert("GPUGone", "P1", scope="gpu", node="n1"),
        ],
        {"TelemetryFault"},
    ),
    "a GPU that hangs its job": (
        [
            alert("TrainingHang", "P0", **JOB, node="n1", rank="5"),
            alert("TelemetryFault", "P1", scope="gpu", node="n1", gpu="5", gpu_uuid="GPU-5"),
            alert("SlowGPU", "P1", **JOB, node="n1", rank="5", gpu_uuid="GPU-5"),
            alert("SlowLink", "P1", **JOB, node="n2", rank="6"),
        ],
        {"TrainingHang"},
    ),
    "a lost node": (
        [
            alert("NodeDown", "P1", scope="node", node="n1"),
            alert("GPUExporterDown", "P3", scope="gpu", node="n1"),
            alert("SlowHost", "P1", **JOB, node="n1", rank="5"),
            alert("ManagementControllerDown", "P3", scope="node", node="n1"),
        ],
        {"NodeDown"},
    ),
    "a slow fabric": (
        [
            alert("FabricSlow", "P1", **JOB),
            alert("SlowLink", "P1", **JOB, node="n1", rank="5"),
            alert("SlowLink", "P1", **JOB, node="n2", rank="6"),
            alert("UnknownSlowness", "P2", **JOB, node="n3", rank="7"),
        ],
        {"FabricSlow"},
    ),
    "a port that is down": (
        [
            alert("InfiniBandPortDown", "P1", scope="network", node="n1", device="mlx5_0", port="1"),
            alert("InfiniBandErrors", "P2", scope="network", node="n1", device="mlx5_0", port="1"),
            alert("SlowLink", "P1", **JOB, node="n1", rank="5"),
        ],
        {"InfiniBandPortDown"},
    ),
    "the platform's disk": (
        [
            alert("PlatformDown", "P0", scope="platform", component="collector"),
            alert("CollectorDiskFull", "P1", scope="platform", component="collector", instance="c0"),
            alert("PlatformInstanceDown", "P2", scope="platform", component="collector", instance="c0"),
            alert("TraceDataLoss", "P3", scope="platform", component="collector", namespace="ml", training_job="gpt"),
        ],
        {"PlatformDown"},
    ),
    "traces with holes": (
        [
            alert("TraceDataLoss", "P3", scope="platform", component="collector", namespace="ml", training_job="gpt"),
            alert("UnknownSlowness", "P2", **JOB, node="n1", rank="5"),
        ],
        {"TraceDataLoss"},
    ),
    "etcd without a leader": (
        [
            alert("EtcdNoLeader", "P0", scope="cluster"),
            alert("ApiServerErrors", "P2", scope="cluster"),
            alert("NodeDown", "P1", scope="node", node="n1"),
        ],
        {"EtcdNoLeader"},
    ),
    "two faults": (
        [
            alert("SlowGPU", "P1", **JOB, node="n1", rank="5", gpu_uuid="GPU-5"),
            alert("SlowHost", "P1", **OTHER, node="n7", rank="0"),
            alert("GPUTooHot", "P2", scope="gpu", node="n3", gpu_uuid="GPU-40"),
        ],
        {"SlowGPU", "SlowHost", "GPUTooHot"},
    ),
    "alerts without a node do not hide each other": (
        [
            alert("SlowGPU", "P1", **JOB, node="", rank="5"),
            alert("NodeExporterDown", "P3", scope="node", instance="10.0.0.9:9100"),
            alert("OperatorDown", "P1", scope="platform", component="operator"),
        ],
        {"SlowGPU", "NodeExporterDown", "OperatorDown"},
    ),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config: dict[str, Any] = yaml.safe_load((CHART / "files/alertmanager/alertmanager.yaml").read_text())
    config["receivers"] = [{"name": "gateway"}]
    config["route"]["group_wait"] = "0s"
    folder: Path = tmp_path_factory.mktemp("alertmanager")
    with alertmanager(config, free_port(), folder) as client:
        yield client


def pages(client: httpx.Client, fault: str) -> list[str]:
    """Names of the groups of this fault that reach the receiver."""
    query = {"inhibited": "false", "silenced": "false", "filter": f'fault="{fault}"'}
    groups = client.get("/api/v2/alerts/groups", params=query).raise_for_status().json()
    return [group["labels"]["alertname"] for group in groups if group["alerts"]]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_page(running: httpx.Client, fault: str) -> None:
    alerts, expected = FAULTS[fault]
    own = [{"labels": {**labels, "fault": fault}} for labels in alerts]

    running.post("/api/v2/alerts", json=own).raise_for_status()
    found = _settled(running, fault, len(expected))

    _resolve(running, own)
    assert found == sorted(expected)


def _resolve(client: httpx.Client, alerts: list[dict[str, dict[str, str]]]) -> None:
    """What has ended inhibits nothing in the next test."""
    ended = datetime.now(UTC).isoformat()
    client.post("/api/v2/alerts", json=[alert | {"endsAt": ended} for alert in alerts]).raise_for_status()


def _settled(client: httpx.Client, fault: str, count: int) -> list[str]:
    """The pages once there are as many as expected, or after some seconds."""
    deadline = time.monotonic() + 10
    while True:
        found = sorted(pages(client, fault))
        if len(found) == count or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
