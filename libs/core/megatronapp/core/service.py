"""How a service runs as a process: start, wait for a signal, stop cleanly."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry

from megatronapp.core.health import HealthServer
from megatronapp.core.logging import get_logger
from megatronapp.core.settings import ServiceSettings

log = get_logger(__name__)


Settings = TypeVar("Settings", bound=ServiceSettings)


class Service(Protocol):
    async def start(self) -> None:
        """Return when listening. Raises UsageError when a port is taken."""

    async def stop(self) -> None:
        """Finish what was taken on, then return."""

    def ready(self) -> bool: ...


async def run(
    service: Service, settings: ServiceSettings, registry: CollectorRegistry, stopping: asyncio.Event | None = None
) -> None:
    """Run one service with its health server until SIGTERM, SIGINT, or until it sets `stopping` itself."""
    log.info("starting", settings=settings.describe())
    stopping = stopping or asyncio.Event()
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


def load_settings(kind: type[Settings], prog: str, argv: Sequence[str] | None = None) -> Settings:
    """Settings from `--config FILE`, the environment and one flag a setting; secrets have no flag."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    for name, field in kind.model_fields.items():
        if "Secret" not in str(field.annotation):
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=field.description)
    flags = vars(parser.parse_args(argv))
    return kind.load(flags.pop("config"), **flags)
