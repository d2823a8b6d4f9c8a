"""Leases: names that one process holds at a time, in Redis. Who does not renew loses them, so a dead holder's are free
after `seconds`.

A holder counts the time of its lease from before it asked, on its own monotonic clock: it stops to act for a name
before another can have it, also after a pause that it has not noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.redis_client import answered, connect

UNANSWERED = "Redis gives no leases"
_HOLD = """
local mine = {}
for i, key in ipairs(KEYS) do
  local holder = redis.call('GET', key)
  if not holder or holder == ARGV[1] then
    redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    mine[#mine + 1] = i
  end
end
return mine
"""
_RELEASE = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
"""
_MEET = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class Leases:
    """What `holder` has of one kind of names, for `seconds` at a time. Methods raise UnavailableError."""

    def __init__(self, url: str, kind: str, holder: str, seconds: float, *, prefix: str = "megatronapp") -> None:
        self.holder, self.seconds = holder, seconds
        self._redis = connect(url, seconds / 2, seconds / 2)
        self._place = f"{prefix}:{kind}"
        self._hold = self._redis.register_script(_HOLD)
        self._release = self._redis.register_script(_RELEASE)
        self._meet = self._redis.register_script(_MEET)

    async def meet(self) -> list[str]:
        """Say that this holder lives; returns all that do, sorted."""
        async with answered(UNANSWERED):
            holders = await self._meet([f"{self._place}-holders"], [self.holder, self._milliseconds])
        return sorted(holder.decode() for holder in holders)

    async def hold(self, names: Sequence[str]) -> set[str]:
        """Take or renew these; returns those that are this holder's now."""
        if not names:
            return set()
        async with answered(UNANSWERED):
            mine = await self._hold(self._keys(names), [self.holder, self._milliseconds])
        return {names[number - 1] for number in mine}

    async def holder_of(self, name: str) -> str | None:
        """Who has it now; None: nobody."""
        async with answered(UNANSWERED):
            found = await self._redis.get(self._keys([name])[0])
        return found.decode() if isinstance(found, bytes) else found

    async def release(self, names: Sequence[str]) -> None:
        """Let others have what is held of these."""
        if names:
            async with answered(UNANSWERED):
                await self._release(self._keys(names), [self.holder])

    async def leave(self) -> None:
        """Live no more, for this holder's part."""
        async with answered(UNANSWERED):
            await self._redis.zrem(f"{self._place}-holders", self.holder)

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    @property
    def _milliseconds(self) -> int:
        return int(1e3 * self.seconds)

    def _keys(self, names: Sequence[str]) -> list[str]:
        return [f"{self._place}:{name}" for name in names]
