"""A reverse proxy before an API server that counts writes, and answers wrong, late or not at all when told to."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from kubernetes.aio.client import ApiClient

from megatronapp.operator.login import Login
from tests.support.kubeconfig import write_kubeconfig

WRITES = {"POST", "PUT", "PATCH", "DELETE"}
HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}


@dataclass
class Faults:
    """How the proxy misbehaves, drawn from a seeded generator."""

    seed: int = 0
    error_ratio: float = 0.0
    """Of requests: answered with one of these, half of them after the server has done what they ask."""
    read_statuses: tuple[int, ...] = (429, 500)
    write_statuses: tuple[int, ...] = (409, 429, 500)
    watch_seconds: float | None = None
    """A watch is cut after up to so long; every second one with "410 Gone"."""
    latency_seconds: float = 0.0


@dataclass
class ApiProxy:
    """Plain HTTP on loopback before the API server of `kubeconfig`."""

    kubeconfig: Path
    folder: Path
    faults: Faults = field(default_factory=Faults)
    on_write: Callable[[int], bool] | None = None
    """Told of the number of each write the server has done; True: the answer never arrives."""
    contentions: int = 0
    """How many more creates, but of Events and the Lease, are answered as contention on a ResourceQuota is."""
    writes: int = 0
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __enter__(self) -> ApiProxy:
        self._random = random.Random(self.faults.seed)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._started.wait(30)
        self.own_kubeconfig = self.folder / "proxy.kubeconfig"
        write_kubeconfig(self.own_kubeconfig, f"http://127.0.0.1:{self.port}")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        configuration = (await Login.of_kubeconfig(str(self.kubeconfig))).configuration
        context = ApiClient(configuration).rest_client.ssl_context
        self._server = configuration.host
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as self._client:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{rest:.*}", self._pass)
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        is_lease, is_write = "/leases" in request.path, request.method in WRITES
        if not is_lease:
            self.seen[request.method, urlsplit(str(request.rel_url)).path] += 1
        if "watch" in request.query and request.query["watch"] not in {"false", "0"}:
            return await self._watch(request)
        await asyncio.sleep(self.faults.latency_seconds * self._random.random())
        fault = not is_lease and self._random.random() < self.faults.error_ratio
        if fault and self._random.random() < 0.5:
            return self._wrong(is_write)
        if self.contentions and request.method == "POST" and not is_lease and not request.path.endswith("/events"):
            self.contentions -= 1
            return _contention()
        answer = await self._forward(request)
        if is_write and not is_lease:
            self.writes += 1
            if self.on_write is not None and self.on_write(self.writes):
                assert request.transport is not None
                request.transport.abort()
        return self._wrong(is_write) if fault else answer

    def _wrong(self, is_write: bool) -> web.Response:
        status = self._random.choice(self.faults.write_statuses if is_write else self.faults.read_statuses)
        headers = {"Retry-After": "1"} if status == 429 else {}
        body = {"kind": "Status", "status": "Failure", "message": f"injected {status}", "code": status}
        return web.json_response(body, status=status, headers=headers)

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP}
        async with self._client.request(
            request.method, f"{self._server}{request.rel_url}", data=body or None, headers=headers
        ) as answer:
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Pass a stream of events on; cut it when that is wanted."""
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP}
        limit = self.faults.watch_seconds
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._client.get(f"{self._server}{request.rel_url}", headers=headers, timeout=timeout) as answer:
            stream = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await stream.prepare(request)
            try:
                async with asyncio.timeout(None if limit is None else limit * self._random.random()):
                    async for line in answer.content:
                        await stream.write(line)
            except TimeoutError:
                if self._random.random() < 0.5:
                    gone: dict[str, Any] = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                    await stream.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return stream


def _contention() -> web.Response:
    message = 'Operation cannot be fulfilled on resourcequotas "all": the object has been modified'
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": "Conflict", "code": 409}
    return web.json_response(body, status=409)
