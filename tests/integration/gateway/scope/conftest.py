"""A gateway with MegaScope's port open, and viewers that speak `mscope.v1`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection, connect

from megatronapp.core.auth import StaticTokens
from megatronapp.core.scope.frame import Frame, unpack
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served, Start

PODS = "pods-token"


@dataclass
class Viewer:
    """Texts and frames as they come; `until` waits for one, and keeps the others for later."""

    socket: ClientConnection
    texts: list[dict[str, Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)

    async def send(self, **body: Any) -> None:
        await self.socket.send(json.dumps(body))

    async def text(self, kind: str, **wanted: Any) -> Any:
        """The next text of this kind that has what is wanted."""
        while True:
            for index, text in enumerate(self.texts):
                if kind in text and wanted.items() <= text[kind].items():
                    return self.texts.pop(index)[kind]
            await self._receive()

    async def event(self, kind: str) -> Any:
        while True:
            event = await self.text("event")
            if kind in event["event"]:
                return event

    async def frame(self) -> Frame:
        while not self.frames:
            await self._receive()
        return self.frames.pop(0)

    async def join(self, run: str = "run-1", **more: Any) -> Any:
        await self.send(join={"client": "test", "run": run, **more})
        return await self.text("welcome")

    async def subscribe(self, number: int, expression: str, **more: Any) -> Any:
        await self.send(subscribe={"id": number, "expression": expression, **more})
        return await self.text("subscribed", id=number)

    async def refused(self, **body: Any) -> Any:
        await self.send(**body)
        return await self.text("refused")

    async def _receive(self) -> None:
        data = await asyncio.wait_for(self.socket.recv(), 30)
        if isinstance(data, str):
            self.texts.append(json.loads(data))
        else:
            self.frames.append(unpack(data))


def address(served: Served) -> str:
    return f"127.0.0.1:{served.gateway.grpc_port}"


def opened(served: Served, token: str = VIEWER, **options: Any) -> connect:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = served.url.replace("http", "ws") + "/api/v1/scope"
    protocols = options.pop("subprotocols", ["mscope.v1"])
    return connect(url, additional_headers=headers | options.pop("headers", {}), subprotocols=protocols, **options)


@asynccontextmanager
async def viewing(served: Served, token: str = VIEWER, **join: Any) -> AsyncIterator[Viewer]:
    async with opened(served, token) as socket:
        viewer = Viewer(socket)
        await viewer.join(**join)
        yield viewer


@pytest.fixture
async def scope(start: Start) -> Served:
    return await with_pods(start)


async def with_pods(start: Start, **settings: Any) -> Served:
    tokens = StaticTokens(pods=SecretStr(PODS), viewer=SecretStr(VIEWER), operator=SecretStr(OPERATOR))
    return await start(authenticator=tokens, **settings)


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0
