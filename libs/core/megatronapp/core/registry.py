"""Small values by name that replicas of a service share, in Redis; each is there for so long as its writer says."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.redis_client import answered, connect

UNANSWERED = "Redis does not answer"
TIMEOUT_SECONDS = 2.0


class Registry:
    """Of one kind of values. Methods raise UnavailableError."""

    def __init__(self, url: str, kind: str, *, prefix: str = "megatronapp") -> None:
        self._redis = connect(url, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
        self._place = f"{prefix}:{kind}:"

    async def put(self, name: str, value: bytes, seconds: float) -> None:
        """In place of the one before."""
        async with answered(UNANSWERED):
            await self._redis.set(self._place + name, value, px=int(1e3 * seconds))

    async def take(self, name: str) -> bytes | None:
        """The value, for the first who asks alone."""
        async with answered(UNANSWERED):
            found: bytes | None = await self._redis.getdel(self._place + name)
        return found

    async def values(self) -> list[bytes]:
        """All that are there."""
        async with answered(UNANSWERED):
            names = sorted([name async for name in self._redis.scan_iter(match=self._place + "*", count=1000)])
            found = await self._redis.mget(names) if names else []
        return [value for value in found if value is not None]

    async def append(self, name: str, values: Sequence[bytes], most: int, seconds: float) -> None:
        """To a list that keeps the newest `most`."""
        async with answered(UNANSWERED):
            work = self._redis.pipeline(transaction=True)
            work.rpush(self._place + name, *values)
            work.ltrim(self._place + name, -most, -1)
            work.pexpire(self._place + name, int(1e3 * seconds))
            await work.execute()

    async def kept(self, name: str) -> list[bytes]:
        """What was appended, the oldest first."""
        async with answered(UNANSWERED):
            found: list[bytes] = await self._redis.lrange(self._place + name, 0, -1)
        return found

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)
