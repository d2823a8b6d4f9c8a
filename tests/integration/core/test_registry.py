"""Values that replicas share, in a real redis-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from megatronapp.core.errors import UnavailableError
from megatronapp.core.registry import Registry
from tests.support.redis import RedisServer


@pytest.fixture
async def registry(redis_server: RedisServer) -> AsyncIterator[Registry]:
    registry = Registry(redis_server.url, "test")
    yield registry
    await registry.close()


async def test_a_value_is_taken_once(registry: Registry) -> None:
    await registry.put("a", b"1", 10)

    taken = await asyncio.gather(*(registry.take("a") for _ in range(10)))

    assert sorted(taken, key=str) == [*[None] * 9, b"1"]


async def test_values_are_of_their_kind_and_for_their_time(registry: Registry, redis_server: RedisServer) -> None:
    other = Registry(redis_server.url, "test-other")
    await other.put("a", b"other", 10)
    await registry.put("a", b"1", 10)
    await registry.put("b", b"2", 0.001)
    await asyncio.sleep(0.01)

    assert await registry.values() == [b"1"]
    await other.close()


async def test_a_list_keeps_the_newest(registry: Registry) -> None:
    await registry.append("a", [b"1", b"2"], most=3, seconds=10)
    await registry.append("a", [b"3", b"4"], most=3, seconds=10)

    assert await registry.kept("a") == [b"2", b"3", b"4"]
    assert await registry.kept("b") == []


async def test_without_redis_it_says_so() -> None:
    registry = Registry("redis://127.0.0.1:1/0", "test")

    with pytest.raises(UnavailableError, match="Redis"):
        await registry.values()
    await registry.close()
