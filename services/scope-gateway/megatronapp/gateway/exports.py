"""Downloads: so many at a time, and none goes on for a client that has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from megatronapp.gateway.errors import GoneError, TooManyError

T = TypeVar("T")


class Exports:
    """Counts the downloads that go on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One download. Raises TooManyError when as many as may go on do."""
        if self._running >= self._most:
            raise TooManyError(f"{self._most} traces are being downloaded, which is the most at a time")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. Raises GoneError, and cancels the work, when the client leaves before.

    For requests without a body: what the client sends meanwhile is dropped.
    """
    tasks = working, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneError("the client has left")
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
