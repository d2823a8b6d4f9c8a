"""Gateways as their own tests start them, and a server that stands where Slack, Feishu and a phone service do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.integration.gateway.conftest import Served, Start, quarantine_dir, start
from tests.support.ports import free_port

__all__ = ["Served", "Start", "quarantine_dir", "start"]


@dataclass
class Inbox:
    """What was posted, by path; `status` and `answers` (by path, else {"code": 0}), said to be in
    `encoding`, are what is answered."""

    port: int
    posts: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    status: int = 200
    answers: dict[str, bytes] = field(default_factory=dict)
    encoding: str = ""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for to, body, _ in self.posts if to == path]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.02)

    async def take(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.posts.append((request.path_params["path"], body, dict(request.headers)))
        answer = self.answers.get(request.path_params["path"], b'{"code": 0}')
        headers = {"Content-Encoding": self.encoding} if self.encoding else None
        return Response(answer, self.status, headers, media_type="application/json")


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    box = Inbox(free_port())
    app = Starlette(routes=[Route("/{path}", box.take, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=box.port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield box
    server.should_exit = True
    await serving
