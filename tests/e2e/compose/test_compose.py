"""docker compose for real: the services start, and the demo's slow rank becomes one incident.

Started by podman-compose out of images that are on this machine; Grafana is left out where its image is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import images
from tests.support.cluster import ROOT, TEST_CLUSTER
from tests.support.dashboards import QUERIES, ask
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(1500)]

SERVICES = ("redis", "collector", "detector", "gateway", "prometheus", "alertmanager")
PORTS = ("PAGE_PORT", "COLLECTOR_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "GRAFANA_PORT")
NOT_IN_COMPOSE = (
    *("megatronapp_operator", "megatronapp_jobs", "megatronapp_job_re"),  # there is no operator
    *("DCGM_", "node_"),  # nor an exporter
    "megatronapp_clock_",  # ranks of one host have one clock
    "megatronapp_link_bandwidth",  # no link is suspected
    *("megatronapp_pipeline_decision", "megatronapp_fbd_", "megatronapp_nccl_"),  # the demo traces alone
    *("_refused_total", "_bad_messages_total", "_notifications_total"),  # and nothing of this has happened
)
"""Metrics that a job of CPU ranks on one host, with compose's services, does not leave."""
CONTAINERS_CONF = TEST_CLUSTER.parent / "containers.conf"
"""podman's settings for a machine on which it may not raise limits, where they are at hand."""
AARDVARK = Path("/usr/lib/podman/aardvark-dns")
"""Resolves the services' names. A podman that once began with CNI, whose plug-in for names is gone, keeps to it."""
NEEDED = ("docker-compose.yml", "deploy", "scripts/compose-env")


class Project:
    """A copy of what compose needs, with ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in PORTS}
        for name in NEEDED:
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        shutil.rmtree(folder / "deploy/compose/secrets", ignore_errors=True)
        subprocess.run([folder / "scripts/compose-env"], check=True, capture_output=True)
        env = folder / ".env"
        env.write_text(env.read_text() + "".join(f"{name}={port}\n" for name, port in self.ports.items()))
        self._containers_conf = folder / "containers.conf"
        self._containers_conf.write_text(
            (CONTAINERS_CONF.read_text() if CONTAINERS_CONF.exists() else "")
            + ('[network]\nnetwork_backend = "netavark"\n' if AARDVARK.exists() else "")
        )
        self.tokens = dict(line.split("=", 1) for line in env.read_text().splitlines())

    def compose(self, *arguments: str) -> str:
        program = Path(os.sys.executable).parent / "podman-compose"
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env={"CONTAINERS_CONF": str(self._containers_conf), **os.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def client(self, port: str, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if token else {}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.ports[port]}", headers=headers, trust_env=False)


def missing_images() -> list[str]:
    """Images that the compose file names and podman has not."""
    own = [images.image(name) for name in ("trace-collector", "detector", "scope-gateway", "trainer")]
    return [name for name in (*own, images.REDIS_IMAGE, *images.MONITORING) if not images.built(name)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if shutil.which("podman") is None:
        pytest.skip("podman is not present here: ../shared/cluster installs it")
    images.provide_monitoring()
    if missing := missing_images():
        pytest.skip(f"podman has no image {', '.join(missing)}: the tests in ../shared/cluster make them")
    found = Project(tmp_path_factory.mktemp("megatronapp"))
    try:
        found.compose("up", "-d", *SERVICES)
        yield found
    finally:
        found.compose("--profile", "demo", "down", "-v")


def until(what: str, true: Callable[[], Any], seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := true():
                return found
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(1)


def test_every_service_is_scraped_and_every_rule_is_loaded(project: Project) -> None:
    with project.client("PROMETHEUS_PORT") as prometheus:

        def up() -> bool:
            answer = prometheus.get("/api/v1/query", params={"query": 'up{part_of="megatronapp"}'}).json()
            return [sample["value"][1] for sample in answer["data"]["result"]] == ["1", "1", "1"]

        until("three targets are up", up)
        groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        managers = prometheus.get("/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]

    assert {group["name"] for group in groups} == {"megatronapp-findings", "megatronapp-platform"}
    assert len(managers) == 1


def test_a_stranger_is_refused_and_a_viewer_sees_the_page(project: Project) -> None:
    with project.client("PAGE_PORT") as stranger, project.client("PAGE_PORT", "VIEWER_TOKEN") as viewer:
        until("the gateway answers", lambda: stranger.get("/api/v1/session").status_code == 200)
        assert stranger.get("/api/v1/jobs").status_code == 401
        assert viewer.get("/api/v1/jobs").json() == []
        assert "<!doctype html>" in viewer.get("/").text.lower()


def test_the_demo_s_slow_rank_becomes_one_incident(project: Project) -> None:
    project.compose("--profile", "demo", "up", "-d", "--no-deps", "demo")
    with project.client("PAGE_PORT", "VIEWER_TOKEN") as viewer:
        finding = until(
            "a finding that pages",
            lambda: next(
                (f for f in viewer.get("/api/v1/findings").json() if f["page"] and f["kind"] == "slow_gpu"), None
            ),
            600,
        )
        incident = until("an incident", lambda: viewer.get("/api/v1/incidents").json())[0]

        findings = viewer.get("/api/v1/findings").json()

    assert finding["ranks"] == [2]
    assert (incident["alert"], incident["training_job"], incident["ranks"]) == ("SlowGPU", "demo", ["2"]), findings


def test_the_dashboards_show_what_the_demo_left(project: Project) -> None:
    with project.client("PROMETHEUS_PORT") as prometheus:

        def shows_something(query: str) -> bool:
            return bool(ask(prometheus, query, "1m"))

        for panel, query in QUERIES:
            if not any(name in query for name in NOT_IN_COMPOSE):
                until(f"{panel} shows something: {query}", partial(shows_something, query), 60)
