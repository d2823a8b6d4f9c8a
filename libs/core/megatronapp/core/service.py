"""How a service runs as a process: start, wait for a signal, stop cleanly."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from megatronapp.core.health import HealthServer
from megatronapp.core.logging import get_logger
from megatronapp.core.settings import ServiceSettings
from prometheus_client import CollectorRegistry

log = get_logger(__name__)


class Service(Protocol):
    async def start(self) -> None:
        """Return when listening. Raises UsageError when a port is taken."""

    async def stop(self) -> None:
        """Finish what was taken on, then return."""

    def ready(self) -> bool: ...


async def run(service: Service, settings: ServiceSettings, registry: CollectorRegistry) -> None:
    """Run one service with its health server until SIGTERM or SIGINT."""
    log.info("starting", settings=settings.describe())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    health = HealthServer(settings.host, settings.http_port, registry, service.ready)
    health.start()
    try:
        await service.start()
        log.info("ready", http_port=health.port)
        await stopping.wait()
    finally:
        log.info("stopping")
        await service.stop()
        health.stop()
