"""docker-compose.yml: every service is told what it understands, nothing listens beyond this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.tls import ClientTls
from megatronapp.gateway.settings import GatewaySettings
from tests.support.environment import load
from tests.support.helm import CHART, ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::[-?](?P<default>[^}]*))?\}")


def filled_in(value: str) -> str:
    """Variables by their default, required ones by a value."""
    return VARIABLE.sub(lambda found: "a-token" if "scripts/" in (found["default"] or "") else found["default"], value)


def environment(service: str) -> dict[str, str]:
    return {name: filled_in(str(value)) for name, value in SERVICES[service].get("environment", {}).items()}


@pytest.mark.parametrize("service", ["collector", "detector", "gateway"])
def test_a_service_understands_what_it_is_told(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(service, environment(service), monkeypatch)

    assert settings.redis_url is not None
    assert settings.host == "0.0.0.0"


def test_nothing_listens_beyond_this_machine() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_images_are_pinned_and_the_product_s_have_one_version() -> None:
    images = {name: filled_in(service["image"]) for name, service in SERVICES.items()}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

    assert not [image for image in images.values() if ":" not in image or image.endswith(":latest")]
    own = {image for image in images.values() if "/megatronapp/" in image}
    assert {image.rsplit(":", 1)[1] for image in own} == {version}


def test_the_product_s_services_are_locked_down() -> None:
    for name in ("collector", "detector", "gateway"):
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["healthcheck"]["test"][3] == "megatronapp.core.probe"


def test_everything_that_is_mounted_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] if not source.startswith(".") else (ROOT / source).exists(), volume


def test_prometheus_accepts_its_configuration_and_scrapes_every_service(tmp_path: Path) -> None:
    (tmp_path / "alerts").symlink_to(CHART / "files/alerts")
    config = tmp_path / "prometheus.yml"
    config.write_text((ROOT / "deploy/compose/prometheus.yml").read_text())
    program = shutil.which("promtool")
    assert program, "promtool is not installed; run: make setup-system"

    done = subprocess.run([program, "check", "config", str(config)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    targets = [
        target for job in yaml.safe_load(config.read_text())["scrape_configs"] for target in job["static_configs"]
    ]
    assert {target["labels"]["component"] for target in targets} == {"collector", "detector", "gateway"}
    assert all(target["targets"] == [f"{target['labels']['component']}:9090"] for target in targets)


def test_alertmanager_finds_the_gateway_and_its_token() -> None:
    config = yaml.safe_load((CHART / "files/alertmanager/alertmanager.yaml").read_text())
    hook = config["receivers"][0]["webhook_configs"][0]

    assert hook["url"] == "http://gateway:8080/api/v1/alerts"
    assert hook["http_config"]["authorization"]["credentials_file"] == "/run/secrets/webhook-token"
    assert "webhook-token" in SERVICES["alertmanager"]["secrets"]


def test_grafana_is_given_the_dashboards_and_a_data_source() -> None:
    mounts = {
        volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"] if volume[0] == "."
    }
    provider = yaml.safe_load((ROOT / "deploy/compose/grafana/dashboards.yml").read_text())["providers"][0]
    source = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources.yml").read_text())["datasources"][0]

    assert (ROOT / mounts[provider["options"]["path"]]).resolve() == CHART / "files/dashboards"
    assert "/etc/grafana/provisioning/datasources/megatronapp.yml" in mounts
    assert "/etc/grafana/provisioning/dashboards/megatronapp.yml" in mounts
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


def test_tokens_are_made_once(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts/compose-env", tmp_path / "scripts")

    subprocess.run([script], check=True, capture_output=True)
    first = (tmp_path / ".env").read_text()
    subprocess.run([script], check=True, capture_output=True)

    tokens = dict(line.split("=", 1) for line in first.splitlines())
    text = (ROOT / "docker-compose.yml").read_text()
    required = {found["name"] for found in VARIABLE.finditer(text) if "scripts/" in (found["default"] or "")}
    assert (tmp_path / ".env").read_text() == first
    assert required == tokens.keys()
    assert len(set(tokens.values())) == len(tokens)
    assert all(len(token) >= 32 for token in tokens.values())
    assert (tmp_path / "deploy/compose/secrets/webhook-token").read_text() == tokens["WEBHOOK_TOKEN"]
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0


def test_with_tls_every_service_is_told_the_files_that_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    overlay: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/tls.yml").read_text())["services"]
    files: dict[str, list[str]] = {name: list(service["environment"].values()) for name, service in overlay.items()}

    collector = load("collector", overlay["collector"]["environment"], monkeypatch)
    gateway = load("gateway", overlay["gateway"]["environment"], monkeypatch)

    assert isinstance(collector, CollectorSettings)
    assert isinstance(gateway, GatewaySettings)
    assert collector.tls is not None
    assert collector.tls.client_ca_file is not None
    assert gateway.collector_tls.certificate_file
    assert ClientTls.of_environment(overlay["demo"]["environment"]).certificate_file
    assert overlay.keys() <= SERVICES.keys()
    for name, service in overlay.items():
        (volume,) = service["volumes"]
        folder = VARIABLE.sub("", volume).strip(":").removesuffix(":ro")
        assert all(file.startswith(f"{folder}/") for file in files[name])
