"""Clients of Redis whose work can be given up at any time, and what is said when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from redis import asyncio as redis_asyncio
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import RedisError

from megatronapp.core.errors import UnavailableError

WAIT_SECONDS = 20.0
"""For one of `max_connections`."""


def connect(url: str, timeout_seconds: float, connect_seconds: float, max_connections: int | None = None) -> Any:
    """A client, which connects when it is first asked. `max_connections`: more callers wait; None: each gets one."""
    of_url: dict[str, Any] = dict(parse_url(url))
    options: dict[str, Any] = {"socket_timeout": timeout_seconds, "socket_connect_timeout": connect_seconds, **of_url}
    options["connection_class"] = _prompt(of_url.get("connection_class", Connection))
    if max_connections is None:
        return redis_asyncio.Redis(connection_pool=redis_asyncio.ConnectionPool(**options))
    pool = redis_asyncio.BlockingConnectionPool(
        **{"max_connections": max_connections, "timeout": WAIT_SECONDS, **options}
    )
    return redis_asyncio.Redis(connection_pool=pool)


@asynccontextmanager
async def answered(otherwise: str) -> AsyncIterator[None]:
    """Around what is asked of Redis. Raises UnavailableError, beginning with `otherwise`, where it does not answer."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise UnavailableError(f"{otherwise}: {error}") from error


@cache
def _prompt(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """The kind of connection (TCP, TLS, Unix) that loses no cancellation: redis-py writes in asyncio.wait_for, which
    returns as if nothing had been when it is cancelled just as the write ends (Python 3.11, bpo-37658). Who follows a
    stream would go on for ever, and who has cancelled it wait as long."""

    class Prompt(kind):  # type: ignore[misc, valid-type]
        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            task = asyncio.current_task()
            before = task.cancelling() if task else 0
            await super().send_packed_command(*args, **options)
            if task and task.cancelling() > before:
                await self.disconnect(nowait=True)
                raise asyncio.CancelledError

    return Prompt
