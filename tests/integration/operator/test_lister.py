"""Lists over real HTTP, from a server that pages, changes and fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from aiohttp import web

from megatronapp.operator import lister
from megatronapp.operator.api import Api
from megatronapp.operator.kinds import JOBS, NODES, OF_TRAINING_JOBS, PODS, TRAINING_JOBS, Kind
from megatronapp.operator.lister import Lister

PAGE = 2


class Server:
    """Five objects of each kind, in pages of two."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.selectors: set[str] = set()
        self.failures: list[int] = []
        self.objects = 5

    async def handle(self, request: web.Request) -> web.Response:
        if self.failures:
            return web.json_response({"message": "no"}, status=self.failures.pop(0), headers={"Retry-After": "0"})
        self.paths.append(request.path)
        self.selectors.add(request.query.get("labelSelector", ""))
        start = int(request.query.get("continue", 0))
        items = [{"metadata": {"uid": f"{n}"}} for n in range(start, min(start + PAGE, self.objects))]
        following = str(start + PAGE) if start + PAGE < self.objects else ""
        return web.json_response({"metadata": {"resourceVersion": "77", "continue": following}, "items": items})


class Heard:
    def __init__(self) -> None:
        self.lists: list[tuple[Kind, int, int]] = []

    def __call__(self, kind: Kind, bodies: Iterable[Any], version: int) -> None:
        self.lists.append((kind, len(list(bodies)), version))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.lists) < count:
                await asyncio.sleep(0.01)


@pytest.fixture
def server() -> Server:
    return Server()


async def test_each_kind_is_listed_whole(server: Server, api: Api) -> None:
    heard = Heard()

    await Lister(api, (), heard).fill()

    assert sorted(heard.lists) == sorted((kind, 5, 77) for kind in lister.KINDS)
    assert set(server.paths) == {
        "/apis/megatronapp.io/v1alpha1/trainingjobs",
        "/apis/batch/v1/jobs",
        "/api/v1/pods",
        "/api/v1/services",
        "/api/v1/nodes",
    }
    assert server.selectors == {"", OF_TRAINING_JOBS}


async def test_only_the_namespaces_asked_for_are_listed(server: Server, api: Api) -> None:
    heard = Heard()

    await Lister(api, ("a", "b"), heard).fill()

    assert {kind: count for kind, count, _ in heard.lists}[PODS] == 10
    assert {kind: count for kind, count, _ in heard.lists}[NODES] == 5
    assert "/apis/megatronapp.io/v1alpha1/namespaces/a/trainingjobs" in server.paths
    assert "/apis/megatronapp.io/v1alpha1/trainingjobs" not in server.paths


async def test_a_server_in_trouble_is_asked_until_it_answers(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lister, "RETRY_SECONDS", 0.01)
    server.failures = [410, 404, 503, 429, 410] * 4
    heard = Heard()

    await Lister(api, (), heard).fill()

    assert len(heard.lists) == len(lister.KINDS)


async def test_a_watch_that_begins_anew_is_followed_by_one_list_of_its_kind(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lister, "QUIET_SECONDS", 0.5)
    heard = Heard()
    found = Lister(api, (), heard)
    running = asyncio.create_task(found.run())

    for _ in range(3):
        found.begun(TRAINING_JOBS)
        await asyncio.sleep(0.01)
    await heard.until(1)
    found.begun(JOBS)
    await heard.until(2)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

    assert [kind for kind, _, _ in heard.lists] == [TRAINING_JOBS, JOBS]


async def test_all_is_listed_now_and_then_though_nothing_happens(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lister, "EVERY_SECONDS", 0.05)
    heard = Heard()
    running = asyncio.create_task(Lister(api, (), heard).run())

    await heard.until(2 * len(lister.KINDS))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

    assert {kind for kind, _, _ in heard.lists} == set(lister.KINDS)
