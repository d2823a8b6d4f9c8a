import asyncio
import os
import signal

from megatronapp.core.service import run
from megatronapp.core.settings import ServiceSettings
from prometheus_client import CollectorRegistry


class Probe:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        self.calls.append("stop")

    def ready(self) -> bool:
        return True


async def test_a_service_stops_cleanly_on_sigterm() -> None:
    probe = Probe()

    async with asyncio.timeout(10):
        await run(probe, ServiceSettings(http_port=0), CollectorRegistry())

    assert probe.calls == ["start", "stop"]
