"""Findings in Redis, for a cluster: two hashes by id, one of the rows, which are small, and one of the bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from megatronapp.core.findings_store.base import Row
from megatronapp.core.redis_client import answered, connect

UNANSWERED = "Redis does not give or take findings"
MAX_CONNECTIONS = 8
"""More callers wait for one of them."""
ORPHAN_SECONDS = 100 * 86_400
"""What is annotated to a finding just as that is deleted goes by itself."""


class RedisBackend:
    """See `Backend` for what it promises."""

    def __init__(self, url: str, *, prefix: str = "megatronapp") -> None:
        self._redis = connect(url, 10.0, 5.0, MAX_CONNECTIONS)
        self._rows, self._bodies = f"{prefix}:findings-store:rows", f"{prefix}:findings-store:bodies"
        self._lists = f"{prefix}:findings-store:annotations:"

    async def index(self) -> list[Row]:
        async with answered(UNANSWERED):
            found: dict[bytes, bytes] = await self._redis.hgetall(self._rows)
        return [_row(id_, text) for id_, text in found.items()]

    async def read(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        if not ids:
            return {}
        async with answered(UNANSWERED):
            bodies: list[bytes | None] = await self._redis.hmget(self._bodies, [_key(id_) for id_ in ids])
        return {id_: body for id_, body in zip(ids, bodies, strict=True) if body is not None}

    async def write(self, row: Row, body: bytes, gone: Sequence[str]) -> None:
        fields = [row.run, row.job, int(row.open), row.updated_unix_ns, row.stored_unix_ns, row.bytes]
        async with answered(UNANSWERED), self._redis.pipeline(transaction=True) as pipeline:
            self._delete(pipeline, gone)
            pipeline.hset(self._rows, _key(row.id), json.dumps(fields))
            pipeline.hset(self._bodies, _key(row.id), body)
            await pipeline.execute()

    async def delete(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        async with answered(UNANSWERED), self._redis.pipeline(transaction=True) as pipeline:
            self._delete(pipeline, ids)
            await pipeline.execute()

    async def annotate(self, id: str, body: bytes, most: int) -> bool:  # noqa: A002  as in `Backend`
        key = self._list_of(id)
        async with answered(UNANSWERED):
            if not await self._redis.hexists(self._rows, _key(id)):
                return False
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.rpush(key, body)
                pipeline.ltrim(key, -most, -1)
                pipeline.expire(key, ORPHAN_SECONDS)
                await pipeline.execute()
        return True

    async def annotations(self, ids: Sequence[str]) -> Mapping[str, Sequence[bytes]]:
        async with answered(UNANSWERED), self._redis.pipeline(transaction=False) as pipeline:
            for id_ in ids:
                pipeline.lrange(self._list_of(id_), 0, -1)
            found: list[list[bytes]] = await pipeline.execute() if ids else []
        return {id_: bodies for id_, bodies in zip(ids, found, strict=True) if bodies}

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    def _delete(self, pipeline: Any, ids: Sequence[str]) -> None:
        if ids:
            keys = [_key(id_) for id_ in ids]
            pipeline.hdel(self._rows, *keys)
            pipeline.hdel(self._bodies, *keys)
            pipeline.delete(*map(self._list_of, ids))

    def _list_of(self, id_: str) -> bytes:
        return self._lists.encode() + _key(id_)


def _row(id_: bytes, text: bytes) -> Row:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = []
    return Row.of(id_.decode(errors="surrogateescape"), *(fields if isinstance(fields, list) else []))


def _key(id_: str) -> bytes:
    return id_.encode(errors="surrogateescape")
