"""Work that nobody waits for any more is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

from megatronapp.gateway.errors import GoneError

LOOK_SECONDS = 0.5
T = TypeVar("T")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result, unless who asked leaves before: then it is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_SECONDS)
            if not task.done() and await request.is_disconnected():
                raise GoneError("who asked has left")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
