"""A server on loopback that answers as a test tells it, in the API server's place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from megatronapp.operator.api import Api
from megatronapp.operator.login import Login
from tests.support.kubeconfig import write_kubeconfig

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def _api_of(handle: Handler, folder: Path) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = Api(await Login.of_kubeconfig(write_kubeconfig(folder / "kubeconfig", server)))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.fixture
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    """Requests to the test module's own `server`."""
    async with _api_of(request.getfixturevalue("server").handle, tmp_path) as found:
        yield found
