"""The platform in one process: collector, detector and gateway over the memory bus."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import Role, StaticTokens
from megatronapp.core.bus import MemoryBus
from megatronapp.core.service import Service
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings


@dataclass(frozen=True)
class Options:
    """Where the platform keeps files and listens; port 0 takes a free one."""

    folder: Path
    page_port: int = 8080
    collector_port: int = 0
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Platform:
    bus: MemoryBus
    collector_address: str
    token_file: Path
    """Holds the token that training pods show."""
    url: str
    """The page, with a one-time token."""


@asynccontextmanager
async def platform(options: Options) -> AsyncIterator[Platform]:
    """Start all services; stop them in reverse order at the end. Raises UsageError when a port is taken."""
    bus, registry = MemoryBus(), CollectorRegistry()
    pods, people = (SecretStr(secrets.token_urlsafe(32)) for _ in range(2))
    tokens = StaticTokens(pods=pods, operator=people)
    collector = Collector(
        CollectorSettings(
            host=options.host, grpc_port=options.collector_port, data_dir=options.folder / "collector", fsync=False
        ),
        bus,
        registry,
        tokens,
    )
    detector = Detector(DetectorSettings(), bus, registry)
    await collector.start()
    address = f"{options.host}:{collector.port}"
    gateway = Gateway(
        GatewaySettings(host=options.host, port=options.page_port, collector_address=address, collector_token=people),
        bus,
        registry,
        tokens,
    )
    started: list[Service] = [collector]
    services: tuple[Service, ...] = (gateway, detector)
    try:
        for service in services:
            await service.start()
            started.append(service)
        token = gateway.links.new(Role.OPERATOR)
        url = f"http://{options.host}:{gateway.port}/?token={token}"
        yield Platform(bus, address, _write_token(options.folder, pods), url)
    finally:
        for service in reversed(started):
            await service.stop()


def _write_token(folder: Path, token: SecretStr) -> Path:
    """The pods' token in a file that only this user can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pod-token"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(token.get_secret_value())
    return path


async def serve(options: Options) -> None:
    """Run the platform until SIGTERM or SIGINT, saying where it is."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with platform(options) as running:
        address, token = running.collector_address, running.token_file
        print(f"page       {running.url}")
        print(f"collector  {address}")
        print(f"a run      megatronapp run JOB.yaml --collector-address {address} --token-file {token}", flush=True)
        await stopping.wait()
        print("stopping")
