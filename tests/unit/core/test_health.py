from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from megatronapp.core.errors import UsageError
from megatronapp.core.health import HealthServer


class Switch:
    on = True

    def __call__(self) -> bool:
        return self.on


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def server(registry: CollectorRegistry, switch: Switch) -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, registry, switch)
    server.start()
    yield server
    server.stop()


def get(server: HealthServer, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}")


def test_alive_and_ready(server: HealthServer) -> None:
    assert get(server, "/healthz").text == "ok\n"
    assert get(server, "/readyz").status_code == 200


def test_alive_but_not_ready(server: HealthServer, switch: Switch) -> None:
    switch.on = False

    assert get(server, "/healthz").status_code == 200
    assert get(server, "/readyz").status_code == 503


def test_metrics_come_from_the_given_registry(server: HealthServer, registry: CollectorRegistry) -> None:
    Counter("megatronapp_probe", "A probe.", registry=registry).inc(3)

    assert "megatronapp_probe_total 3.0" in get(server, "/metrics").text


def test_an_unknown_path_says_what_there_is(server: HealthServer) -> None:
    answer = get(server, "/")

    assert answer.status_code == 404
    assert "/metrics" in answer.text


def test_a_busy_port_names_the_flag(server: HealthServer, registry: CollectorRegistry) -> None:
    with pytest.raises(UsageError, match="--http-port"):
        HealthServer("127.0.0.1", server.port, registry, lambda: True)
