"""A rank of four stops, and the collector is away in between: the detector names the rank all the same, and before it
nobody, since an absent collector is no hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import StaticTokens
from megatronapp.core.bus import MemoryBus
from megatronapp.core.findings import Cause
from megatronapp.core.findings_store import connect
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from tests.integration.megatrace.support import BEGUN, CULPRIT, OTHERS_SECONDS, stopping_rank, watched
from tests.support.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

AWAY_SECONDS = 12.0
"""More than a hang needs to be told."""
MOST_SECONDS = 20.0
"""From the collector on: until the ranks have found it again, which they try at least every 12.5 s, and 5 s of their
heartbeats."""
TOKEN = SecretStr("pods")


@dataclass
class Services:
    """Collector and detector over one bus; the collector can be away for a while, and comes back with its files."""

    folder: Path
    bus: MemoryBus = field(default_factory=MemoryBus)
    port: int = field(default_factory=free_port)

    @property
    def collector_address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    async def start_collector(self) -> None:
        settings = CollectorSettings(
            host="127.0.0.1", grpc_port=self.port, data_dir=self.folder / "collector", fsync=False
        )
        self.collector = Collector(settings, self.bus, CollectorRegistry(), StaticTokens(pods=TOKEN))
        await self.collector.start()

    async def restart_collector(self) -> None:
        await self.collector.stop()
        await asyncio.sleep(AWAY_SECONDS)
        await self.start_collector()


@asynccontextmanager
async def running(platform: Services) -> AsyncIterator[Services]:
    platform.token_file.write_text(TOKEN.get_secret_value())
    registry = CollectorRegistry()
    settings = DetectorSettings(quarantine_dir=platform.folder / "quarantine")
    store = connect("memory", None, registry, settings.findings_limits)
    detector = Detector(settings, platform.bus, registry, store)
    await platform.start_collector()
    await detector.start()
    try:
        yield platform
    finally:
        await detector.stop()
        await platform.collector.stop()
        await store.close()


async def test_a_rank_that_stops_is_named_though_the_collector_was_away_meanwhile(tmp_path: Path) -> None:
    services = Services(tmp_path)
    async with watched(tmp_path, "", stopping_rank, platform=running(services)) as (hangs, training):
        begun = tmp_path / BEGUN
        while not begun.exists() and not training.done():
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        await services.restart_collector()
        named_while_away, back = list(hangs.opened), time.monotonic()
        while not hangs.opened and not training.done() and time.monotonic() < back + 40:
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - back
        await asyncio.sleep(OTHERS_SECONDS)

    print(f"named {seconds:.1f} s after the collector was back")
    assert named_while_away == []
    assert [(each.ranks, each.cause) for each in hangs.opened] == [((CULPRIT,), Cause.HOST_CPU)]
    assert seconds <= MOST_SECONDS
