"""Progress and findings, asked of a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.core.auth import StaticTokens
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.operator.gateway import GatewayClient
from tests.integration.gateway.support import RUN, finding, hello, message, summary

VIEWER = SecretStr("viewer-token")


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.close()


@pytest.fixture
async def url(bus: MemoryBus) -> AsyncIterator[str]:
    settings = GatewaySettings(
        port=0, grpc_port=0, collector_addresses=("127.0.0.1:9",), auth="static", viewer_token=VIEWER
    )
    gateway = Gateway(settings, bus, CollectorRegistry(), StaticTokens(viewer=VIEWER))
    await gateway.start()
    yield f"http://127.0.0.1:{gateway.port}"
    await gateway.stop()


async def test_a_run_is_reported_with_what_was_found_in_it(bus: MemoryBus, url: str) -> None:
    for said in (message(hello()), *(message(summary(step, seconds=0.5)) for step in range(1, 51))):
        await bus.publish(Topic.STEPS, RUN, said.SerializeToString())
    await bus.publish(Topic.FINDINGS, RUN, finding().to_proto().SerializeToString())
    client = GatewayClient(url, VIEWER)

    async with asyncio.timeout(20):
        while not (found := (await client.reports()).get(RUN)) or not found.suspicions or found.step < 50:
            await asyncio.sleep(0.05)
    await client.close()

    assert (found.attempt, found.step, found.total_steps) == (1, 50, 100)
    assert found.step_seconds == pytest.approx(0.5)
    suspicion = found.suspicions[0]
    assert (suspicion.kind, suspicion.cause, suspicion.ranks) == ("slow_gpu", "compute", (1,))
    assert suspicion.page
    assert suspicion.confidence == pytest.approx(0.97)


async def test_a_wrong_token_is_told_without_the_token(url: str) -> None:
    client = GatewayClient(url, SecretStr("wrong-token"))

    with pytest.raises(UnavailableError, match="401") as refused:
        await client.reports()

    assert "wrong-token" not in str(refused.value)
    await client.close()


async def test_a_gateway_that_is_away_is_unavailable() -> None:
    client = GatewayClient("http://127.0.0.1:9", None)

    with pytest.raises(UnavailableError, match="does not tell of jobs"):
        await client.reports()
    await client.close()
