"""What a bus holds of a topic now, for who wants to know the past and not to follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from megatronapp.core.bus.base import READ_COUNT, Bus, Message


async def read_kept(bus: Bus, topic: str) -> AsyncIterator[Message]:
    """The messages that are kept, the oldest first, up to the newest at the beginning or a little further. Raises
    UnavailableError when the bus can't tell that one."""
    newest = await bus.newest(topic)
    if not newest:
        return
    async with aclosing(bus.follow(topic)) as batches:  # type: ignore[type-var]
        async for messages in batches:
            for message in messages:
                yield message
            # The newest may have been trimmed away meanwhile: where fewer come than could, the end is reached.
            if len(messages) < READ_COUNT or any(message.id == newest for message in messages):
                return
            await asyncio.sleep(0)
