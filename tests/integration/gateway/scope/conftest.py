"""A gateway with MegaScope's port open, and viewers that speak `mscope.v1`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from megatronapp.core.auth import StaticTokens
from megatronapp.core.scope.frame import Frame, unpack
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served, Start
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.scoped_job import run_scoped

PODS = "pods-token"
RUN = "run-of-a-training"
Trains = Callable[..., AbstractContextManager[Future[Any]]]


@dataclass
class Viewer:
    """Texts and frames as they come; `until` waits for one, and keeps the others for later."""

    socket: ClientConnection
    texts: list[dict[str, Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    patience_seconds: float = 30.0

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
        data = await asyncio.wait_for(self.socket.recv(), self.patience_seconds)
        if isinstance(data, str):
            self.texts.append(json.loads(data))
        else:
            self.frames.append(unpack(data))


def address(served: Served) -> str:
    return f"127.0.0.1:{served.gateway.grpc_port}"


def opened(served: Served, token: str = VIEWER, **options: Any) -> connect:
    return dialled(served.url, token, **options)


def dialled(page: str, token: str, **options: Any) -> connect:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = page.rstrip("/").replace("http", "ws") + "/api/v1/scope"
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


@pytest.fixture
def trains(scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trains:
    """Starts a real training, of two ranks unless told otherwise; gives the future of their losses."""
    token = tmp_path / "token"
    token.write_text(PODS)
    monkeypatch.setenv(GATEWAY_ADDRESS, address(scope))
    monkeypatch.setenv("MEGATRONAPP_TOKEN_FILE", str(token))

    @contextmanager
    def training(flags: str, ranks: int = 2) -> Iterator[Future[Any]]:
        with agent() as environment, ThreadPoolExecutor(1) as pool:
            environment |= {GATEWAY_ADDRESS: address(scope), "MEGATRONAPP_RUN_ID": RUN}
            yield pool.submit(run_forked, ranks, run_scoped, flags, environment=environment, timeout=110)

    return training


async def joined(served: Served, training: Future[Any]) -> Viewer:
    """An operator, as soon as the gateway knows the run."""
    return await joined_on(served.url, OPERATOR, RUN, training)


async def joined_on(page: str, token: str, run: str, training: Future[Any] | asyncio.Task[Any]) -> Viewer:
    while not training.done():
        socket = await dialled(page, token)
        viewer = Viewer(socket)
        try:
            await viewer.join(run=run)
        except ConnectionClosed:  # it does not know the run yet
            await asyncio.sleep(0.1)
            continue
        return viewer
    training.result()
    raise AssertionError("the training ended before anybody could look")


async def command(viewer: Viewer, identifier: str, **action: Any) -> None:
    """To all ranks, who do it."""
    await viewer.send(command={"id": identifier, "reason": "a test", **action})
    result = await viewer.text("result", command=identifier)
    while result.get("answered", 0) < result["ranks"]:
        assert not result.get("ack", {}).get("code"), result
        result = await viewer.text("result", command=identifier)


async def newest(viewer: Viewer, subscriptions: set[int]) -> dict[int, Frame]:
    """A picture of each: a viewer gets the newest ones, not all."""
    shown: dict[int, Frame] = {}
    while set(shown) != subscriptions:
        frame = await viewer.frame()
        shown[frame.subscription] = frame
    return shown
