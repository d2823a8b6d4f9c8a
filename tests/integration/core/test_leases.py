"""Leases against a real redis-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from megatronapp.core.errors import UnavailableError
from megatronapp.core.leases import Leases
from tests.support.redis import RedisServer

SECONDS = 0.5


@pytest.fixture
async def two(redis_server: RedisServer) -> AsyncIterator[tuple[Leases, Leases]]:
    first, second = (Leases(redis_server.url, "test", name, SECONDS) for name in ("a", "b"))
    yield first, second
    await first.close()
    await second.close()


async def test_a_name_has_one_holder(two: tuple[Leases, Leases]) -> None:
    first, second = two

    assert await first.hold(["x", "y"]) == {"x", "y"}
    assert await second.hold(["y", "z"]) == {"z"}
    assert await first.hold(["x", "y", "z"]) == {"x", "y"}


async def test_what_is_released_or_not_renewed_is_free(two: tuple[Leases, Leases]) -> None:
    first, second = two
    await first.hold(["x", "y"])
    await first.release(["x"])
    await second.release(["y"])
    after_release = await second.hold(["x", "y"])

    async with asyncio.timeout(30):
        while await second.hold(["y"]) != {"y"}:
            await asyncio.sleep(0.05)

    assert after_release == {"x"}


async def test_holders_know_who_lives(two: tuple[Leases, Leases]) -> None:
    first, second = two
    await first.meet()
    both = await second.meet()
    await first.leave()

    assert both == ["a", "b"]
    assert await second.meet() == ["b"]


async def test_a_redis_that_is_away_is_told(redis_server: RedisServer) -> None:
    leases = Leases("redis://127.0.0.1:1/0", "test", "a", SECONDS)

    with pytest.raises(UnavailableError):
        await leases.meet()

    await leases.close()
