"""Lists and watches over real HTTP, of a server that pages, breaks off, forgets and fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from megatronapp.operator import api as api_module
from megatronapp.operator import reflector
from megatronapp.operator.api import Api, RefusedError
from megatronapp.operator.kinds import NODES, OF_TRAINING_JOBS, PODS, TRAINING_JOBS, Kind
from megatronapp.operator.reflector import Reflector

PAGE = 2
Events = list[dict[str, Any]]


def event(change: str, name: str, version: int) -> dict[str, Any]:
    return {"type": change, "object": thing(name, version)}


def thing(name: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
OVERLOADED = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is slow"}}


class Server:
    """Lists in pages of two. Each watch tells the next of the stories lined up; one without a story stays open."""

    def __init__(self) -> None:
        self.there = [thing(f"n{number}") for number in range(5)]
        self.version = 77
        self.lists: list[str] = []
        self.watched_from: list[int] = []
        self.selectors: set[str] = set()
        self.list_failures: list[int] = []
        self.stories: list[Events | int] = []
        self.breaks_off = False
        self.falls_silent = False
        """After a story, the connection left open."""
        self.says_nothing = False
        """To any watch, not even that it has begun."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.selectors.add(request.query.get("labelSelector", ""))
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        if self.list_failures:
            return web.json_response({"message": "no"}, status=self.list_failures.pop(0), headers={"Retry-After": "0"})
        start = int(request.query.get("continue", 0))
        if not start:
            self.lists.append(request.path)
        following = str(start + PAGE) if start + PAGE < len(self.there) else ""
        meta = {"resourceVersion": str(self.version), "continue": following}
        return web.json_response({"metadata": meta, "items": self.there[start : start + PAGE]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched_from.append(int(request.query["resourceVersion"]))
        story = self.stories.pop(0) if self.stories else None
        if self.says_nothing:
            await asyncio.sleep(60)
        if isinstance(story, int):
            return web.json_response({"message": "no"}, status=story)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for told in story or []:
            await answer.write(orjson.dumps(told) + b"\n")
        if story is None or self.falls_silent:
            await asyncio.sleep(60)
        if self.breaks_off and request.transport is not None:
            request.transport.abort()
        return answer


class Recorded:
    def __init__(self) -> None:
        self.lists: list[tuple[str, int, int]] = []
        self.events: list[tuple[str, bool]] = []

    def on_list(self, kind: Kind, bodies: Iterable[Any], version: int) -> None:
        self.lists.append((kind.plural, len(list(bodies)), version))

    def on_event(self, kind: Kind, body: dict[str, Any], deleted: bool) -> None:
        self.events.append((body["metadata"]["name"], deleted))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def heard() -> Recorded:
    return Recorded()


Follow = Callable[..., Reflector]


@pytest.fixture
def follow(api: Api, heard: Recorded, monkeypatch: pytest.MonkeyPatch) -> Follow:
    monkeypatch.setattr(reflector, "RETRY_SECONDS", 0.01)
    return lambda kind, *spaces: Reflector(api, kind, spaces, heard.on_list, heard.on_event)


@asynccontextmanager
async def following(found: Reflector) -> AsyncIterator[None]:
    await found.list()
    task = asyncio.create_task(found.watch())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


async def test_all_pages_of_a_list_are_handed_on_at_once(server: Server, follow: Follow, heard: Recorded) -> None:
    await follow(PODS).list()

    assert heard.lists == [("pods", 5, 77)]
    assert server.lists == ["/api/v1/pods"]
    assert server.selectors == {OF_TRAINING_JOBS}


async def test_only_the_namespaces_asked_for_are_listed(server: Server, follow: Follow, heard: Recorded) -> None:
    await follow(TRAINING_JOBS, "a", "b").list()
    await follow(NODES, "a", "b").list()

    root = "/apis/megatronapp.io/v1alpha1/namespaces"
    assert server.lists == [f"{root}/a/trainingjobs", f"{root}/b/trainingjobs", "/api/v1/nodes"]
    assert heard.lists == [("trainingjobs", 10, 77), ("nodes", 5, 77)]


async def test_a_server_in_trouble_is_asked_until_it_answers(server: Server, follow: Follow, heard: Recorded) -> None:
    server.list_failures = [410, 404, 503, 429, 410] * 4

    await follow(PODS).list()

    assert len(heard.lists) == 1


async def test_what_may_not_be_seen_is_told(server: Server, follow: Follow) -> None:
    server.list_failures = [403]

    with pytest.raises(RefusedError, match="no"):
        await follow(PODS).list()


async def test_events_are_handed_on_in_order_however_long_they_are(
    server: Server, follow: Follow, heard: Recorded
) -> None:
    long = {**event("MODIFIED", "a", 79), "padding": "x" * 2_000_000}
    server.stories = [[event("ADDED", "a", 78), long, event("DELETED", "a", 80)]]

    async with following(follow(PODS)):
        await until(lambda: len(heard.events) == 3)

    assert heard.events == [("a", False), ("a", False), ("a", True)]


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(
    server: Server, follow: Follow, heard: Recorded
) -> None:
    server.stories = [[event("ADDED", "a", 80)], [event("BOOKMARK", "", 90)]]

    async with following(follow(PODS)):
        await until(lambda: len(server.watched_from) == 3)

    assert server.watched_from == [77, 80, 90]
    assert heard.events == [("a", False)]
    assert len(heard.lists) == 1


async def test_a_watch_that_falls_silent_is_opened_anew_where_it_was(
    server: Server, follow: Follow, heard: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the server's bookmarks are apart, and not so long as the server lets a watch last.
    assert 60 < api_module.SILENCE_SECONDS < api_module.WATCH_SECONDS / 2
    monkeypatch.setattr(api_module, "SILENCE_SECONDS", 0.2)
    server.stories, server.falls_silent = [[event("ADDED", "a", 80)], [event("ADDED", "b", 81)]], True

    async with following(follow(PODS)):
        await until(lambda: len(server.watched_from) == 3)

    assert server.watched_from == [77, 80, 81]
    assert heard.events == [("a", False), ("b", False)]
    assert len(heard.lists) == 1


async def test_a_watch_that_never_begins_is_broken_and_all_is_listed_again(
    server: Server, follow: Follow, heard: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "TIMEOUT_SECONDS", 0.2)
    server.says_nothing = True

    async with following(follow(PODS)):
        await until(lambda: len(heard.lists) == 2)


@pytest.mark.parametrize("story", [[EXPIRED], [OVERLOADED], 410, 429, 500, 404])
async def test_after_a_watch_that_fails_all_is_listed_again(
    server: Server, follow: Follow, heard: Recorded, story: Events | int
) -> None:
    server.stories = [story]

    async with following(follow(PODS)):
        await until(lambda: bool(server.watched_from))
        server.version = 99
        await until(lambda: len(server.watched_from) == 2)

    assert heard.lists == [("pods", 5, 77), ("pods", 5, 99)]
    assert server.watched_from == [77, 99]


async def test_after_a_connection_that_breaks_all_is_listed_again(
    server: Server, follow: Follow, heard: Recorded
) -> None:
    server.stories, server.breaks_off = [[event("ADDED", "a", 80)]], True

    async with following(follow(PODS)):
        await until(lambda: len(heard.lists) == 2)

    assert heard.events == [("a", False)]


async def test_one_broken_watch_lists_all_namespaces_again(server: Server, follow: Follow, heard: Recorded) -> None:
    server.stories = [[EXPIRED]]

    async with following(follow(PODS, "a", "b")):
        await until(lambda: len(heard.lists) == 2)

    assert heard.lists == [("pods", 10, 77)] * 2


async def test_losing_a_right_ends_the_watch_with_the_servers_words(server: Server, follow: Follow) -> None:
    server.stories = [403]
    found = follow(PODS)
    await found.list()

    with pytest.raises(ExceptionGroup) as refused:
        await found.watch()

    assert refused.group_contains(RefusedError, match="no")
