"""The probe says whether a service answers, and if not, why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import UnavailableError, UsageError
from megatronapp.core.health import HealthServer
from megatronapp.core.probe import main, probe, wait


@pytest.fixture
def ready() -> threading.Event:
    return threading.Event()


@pytest.fixture
def port(ready: threading.Event) -> Iterator[int]:
    server = HealthServer("127.0.0.1", 0, CollectorRegistry(), ready.is_set)
    server.start()
    yield server.port
    server.stop()


@pytest.fixture
def grpc_port() -> Iterator[tuple[int, health.HealthServicer]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, servicer
    server.stop(None)


def test_a_service_that_answers(port: int) -> None:
    probe(f"http://127.0.0.1:{port}/healthz")
    probe(f"tcp://127.0.0.1:{port}")
    assert main([f"http://127.0.0.1:{port}/healthz"]) == 0


def test_a_service_that_is_not_ready(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"http://127.0.0.1:{port}/readyz"]) == 1
    assert "answers 503: not ready" in capsys.readouterr().err


def test_waiting_for_a_service(port: int, ready: threading.Event) -> None:
    threading.Timer(0.3, ready.set).start()

    wait(f"http://127.0.0.1:{port}/readyz", wait_seconds=30)


def test_a_grpc_service_serves_or_does_not(grpc_port: tuple[int, health.HealthServicer]) -> None:
    port, servicer = grpc_port
    probe(f"grpc://127.0.0.1:{port}")

    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    with pytest.raises(UnavailableError, match="not serving"):
        probe(f"grpc://127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["http", "grpc", "tcp"])
def test_nobody_there(scheme: str, free_port: int) -> None:
    with pytest.raises(UnavailableError, match=str(free_port)):
        probe(f"{scheme}://127.0.0.1:{free_port}", timeout_seconds=1)


@pytest.mark.parametrize("url", ["redis://x:1", "http://", "localhost:8080"])
def test_what_is_no_such_address(url: str) -> None:
    with pytest.raises(UsageError, match="http://host:port/path"):
        probe(url)
