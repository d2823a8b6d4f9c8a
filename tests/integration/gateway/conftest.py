"""A gateway that serves on a free port, its bus, and the people who ask it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection, connect

from megatronapp.core.auth import Authenticator, StaticTokens
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Finding
from megatronapp.core.findings_store import FindingsStore
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import trace_pb2
from tests.integration.gateway.support import CollectorAnswers, serve

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
VIEWER, OPERATOR = "viewer-token", "operator-token"
ANSWER_SECONDS = 60.0


@dataclass
class Served:
    gateway: Gateway
    bus: MemoryBus
    registry: CollectorRegistry
    answers: CollectorAnswers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def client(self, token: str = VIEWER, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # No TLS here: by default each client would load the machine's certificates.
        options = {"verify": NO_CERTIFICATES, "timeout": ANSWER_SECONDS} | options
        return httpx.AsyncClient(base_url=self.url, headers=headers | options.pop("headers", {}), **options)

    def listen(self, token: str = VIEWER, **options: Any) -> connect:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        address = self.url.replace("http", "ws") + "/api/v1/events"
        return connect(address, additional_headers=headers | options.pop("headers", {}), **options)

    async def publish(self, *items: trace_pb2.RankMessage | Finding) -> None:
        for item in items:
            if isinstance(item, Finding):
                await self.bus.publish(Topic.FINDINGS, item.run, item.to_proto().SerializeToString())
            else:
                await self.bus.publish(Topic.STEPS, item.identity.run, item.SerializeToString())

    async def until(self, path: str, true: Callable[[Any], bool]) -> Any:
        """Ask until the answer is as wanted."""
        async with self.client() as client:
            while True:
                answer = await client.get(path)
                if answer.status_code == 200 and true(answer.json()):
                    return answer.json()
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quarantine_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the gateways of a test set records aside."""
    folder = tmp_path / "quarantine"
    monkeypatch.setenv("MEGATRONAPP_GATEWAY_QUARANTINE_DIR", str(folder))
    return folder


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start gateways with the settings given; a collector answers beside each."""
    running: list[tuple[Gateway, Any]] = []

    async def started(
        *,
        authenticator: Authenticator | None = None,
        bus: MemoryBus | None = None,
        findings: FindingsStore | None = None,
        **settings: Any,
    ) -> Served:
        answers = CollectorAnswers()
        server, address = await serve(answers)
        bus, registry = bus or MemoryBus(), CollectorRegistry()
        tokens = StaticTokens(viewer=SecretStr(VIEWER), operator=SecretStr(OPERATOR))
        wanted = GatewaySettings(**{"port": 0, "grpc_port": 0, "collector_addresses": (address,)} | settings)
        gateway = Gateway(wanted, bus, registry, authenticator or tokens, findings)
        running.append((gateway, server))
        await gateway.start()
        return Served(gateway, bus, registry, answers)

    yield started
    for gateway, server in running:
        await gateway.stop()
        await server.stop(None)


@pytest.fixture
async def served(start: Start) -> Served:
    return await start()


async def next_event(socket: ClientConnection, kind: str, true: Callable[[Any], bool] = lambda event: True) -> Any:
    """The next event of this type that is as wanted; others are skipped."""
    while True:
        event = json.loads(await socket.recv())
        if event["type"] == kind and true(event):
            return event
