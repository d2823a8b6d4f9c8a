"""A client of a real redis-server whose work is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection, SSLConnection

from megatronapp.core.redis_client import connect
from tests.support.redis import RedisServer


async def test_work_that_is_cancelled_just_as_a_write_ends_ends(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.wait_for of Python 3.11 loses such a cancellation."""
    client, write = connect(redis_server.url, 5.0, 5.0), AbstractConnection._send_packed_command
    over = asyncio.Event()
    await client.ping()

    async def ask_on() -> None:
        while not over.is_set():
            await client.ping()

    async def cancelled_at_its_end(connection: AbstractConnection, command: Any) -> None:
        await write(connection, command)
        asking.cancel()

    asking = asyncio.create_task(ask_on())
    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "_send_packed_command", cancelled_at_its_end)
        await asyncio.sleep(0.05)
    ended, _ = await asyncio.wait({asking}, timeout=1.0)
    over.set()

    assert ended, "it goes on"
    assert await client.ping(), "the next one has a connection of its own"
    await client.aclose(close_connection_pool=True)


async def test_work_in_a_task_that_was_cancelled_before_is_done(redis_server: RedisServer) -> None:
    """What a task puts in order at its end."""
    client = connect(redis_server.url, 5.0, 5.0)
    found: list[bool] = []

    async def tidy_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            found.append(await client.ping())

    task = asyncio.create_task(tidy_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5.0)

    assert found == [True]
    await client.aclose(close_connection_pool=True)


@pytest.mark.parametrize("most", [None, 3])
def test_the_url_s_own_kind_of_connection_and_options_count(most: int | None) -> None:
    pool = connect("rediss://u:p@host:7/2?socket_timeout=3", 5.0, 4.0, most).connection_pool

    assert issubclass(pool.connection_class, SSLConnection)
    known = pool.connection_kwargs
    assert [known[name] for name in ("host", "port", "db", "username", "socket_timeout", "socket_connect_timeout")] == [
        "host", 7, 2, "u", 3.0, 4.0,
    ]  # fmt: skip
