from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import AllowAll, Authenticator
from megatronapp.core.bus import MemoryBus
from tests.integration.collector.support import CollectorProcess


class Running:
    """A collector in this process, with its bus and metrics."""

    def __init__(self, folder: Path, authenticator: Authenticator, settings: dict[str, Any]) -> None:
        self.bus = MemoryBus()
        self.registry = CollectorRegistry()
        given = {"grpc_port": 0, "data_dir": folder, "fsync": False} | settings
        self.collector = Collector(CollectorSettings(**given), self.bus, self.registry, authenticator)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.collector.port}"

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    running: list[Running] = []

    async def _start(authenticator: Authenticator | None = None, **settings: Any) -> Running:
        one = Running(tmp_path / "data", authenticator or AllowAll(), settings)
        await one.collector.start()
        running.append(one)
        return one

    yield _start
    for one in running:
        await one.collector.stop()


StartProcess = Callable[..., CollectorProcess]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StartProcess]:
    """Start `python -m megatronapp.collector` with settings by their names in the environment."""
    started: list[CollectorProcess] = []

    def _start(**settings: str) -> CollectorProcess:
        started.append(CollectorProcess(tmp_path, settings))
        started[-1].start()
        return started[-1]

    yield _start
    for one in started:
        one.kill()
