"""The bus inside one process and one event loop: laptop, demo and tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from megatronapp.core.bus.base import Message


@dataclass
class _Group:
    next_id: int
    unacked: dict[int, Message] = field(default_factory=dict)
    again: deque[Message] = field(default_factory=deque)


@dataclass
class _Topic:
    messages: deque[Message]
    published: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        return self.published - len(self.messages)


class MemoryBus:
    """See `Bus` for what it promises. Each topic keeps its newest `max_messages`."""

    def __init__(self, max_messages: int = 100_000) -> None:
        self._max_messages = max_messages
        self._topics: dict[str, _Topic] = {}
        self._changed = asyncio.Condition()

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        async with self._changed:
            log = self._topic(topic)
            log.messages.append(Message(topic, key, value, id=str(log.published)))
            log.published += 1
            self._changed.notify_all()

    async def subscribe(
        self, topic: str, *, group: str, consumer: str, from_start: bool = True
    ) -> AsyncIterator[Message]:
        log = self._topic(topic)
        state = log.groups.setdefault(group, _Group(next_id=log.oldest if from_start else log.published))
        mine: dict[int, Message] = {}
        try:
            while True:
                message = await self._next(log, state)
                mine[int(message.id)] = state.unacked[int(message.id)] = message
                yield message
                await asyncio.sleep(0)  # a reader of a long backlog lets others run
        finally:
            left = [message for number, message in mine.items() if state.unacked.pop(number, None)]
            state.again.extendleft(reversed(left))

    async def ack(self, message: Message, *, group: str) -> None:
        self._topic(message.topic).groups[group].unacked.pop(int(message.id), None)

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        self._topics.clear()

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic(deque(maxlen=self._max_messages)))

    async def _next(self, log: _Topic, state: _Group) -> Message:
        async with self._changed:
            while not state.again and state.next_id >= log.published:
                await self._changed.wait()
        if state.again:
            return state.again.popleft()
        state.next_id = max(state.next_id, log.oldest)
        message = log.messages[state.next_id - log.oldest]
        state.next_id += 1
        return message
