"""The bus inside one process and one event loop: laptop, demo and tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from megatronapp.core.bus.base import KEPT_MESSAGES, READ_COUNT, Message, kept


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
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def oldest(self) -> int:
        return self.published - len(self.messages)

    def start(self, *, from_start: bool) -> int:
        return self.oldest if from_start else self.published

    def since(self, number: int, count: int) -> list[Message]:
        """At most `count` messages from this one on, or from the oldest that is still there."""
        first = max(number, self.oldest) - self.oldest
        return [self.messages[index] for index in range(first, min(first + count, len(self.messages)))]

    async def wait(self) -> None:
        """Until something is published, or delivered to a group again."""
        self.grown.clear()
        await self.grown.wait()


class MemoryBus:
    """See `Bus` for what it promises. Each topic keeps its newest `max_messages`, or fewer (base.KEPT_OF_TOPIC)."""

    def __init__(self, max_messages: int = KEPT_MESSAGES) -> None:
        self._max_messages = max_messages
        self._topics: dict[str, _Topic] = {}

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        await self.publish_all(topic, [(key, value)])

    async def publish_all(self, topic: str, messages: Iterable[tuple[str, bytes]]) -> None:
        log = self._topic(topic)
        for key, value in messages:
            log.messages.append(Message(topic, key, value, id=str(log.published)))
            log.published += 1
        log.grown.set()

    async def newest(self, topic: str) -> str:
        log = self._topic(topic)
        return log.messages[-1].id if log.messages else ""

    async def follow(self, topic: str, *, from_start: bool = True) -> AsyncIterator[Sequence[Message]]:
        log = self._topic(topic)
        number = log.start(from_start=from_start)
        while True:
            messages = log.since(number, READ_COUNT)
            if messages:
                number = int(messages[-1].id) + 1
                yield messages
                await asyncio.sleep(0)  # a reader of a long backlog lets others run
            else:
                await log.wait()

    async def subscribe(
        self, topic: str, *, group: str, consumer: str, from_start: bool = True
    ) -> AsyncIterator[Message]:
        log = self._topic(topic)
        state = log.groups.setdefault(group, _Group(next_id=log.start(from_start=from_start)))
        mine: dict[int, Message] = {}
        try:
            while True:
                message = await self._next(log, state)
                mine[int(message.id)] = state.unacked[int(message.id)] = message
                yield message
                await asyncio.sleep(0)
        finally:
            left = [message for number, message in mine.items() if state.unacked.pop(number, None)]
            state.again.extendleft(reversed(left))
            log.grown.set()

    async def ack(self, *messages: Message, group: str) -> None:
        for message in messages:
            self._topic(message.topic).groups[group].unacked.pop(int(message.id), None)

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        self._topics.clear()

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic(deque(maxlen=kept(name, self._max_messages))))

    @staticmethod
    async def _next(log: _Topic, state: _Group) -> Message:
        while True:
            if state.again:
                return state.again.popleft()
            if messages := log.since(state.next_id, 1):
                state.next_id = int(messages[0].id) + 1
                return messages[0]
            await log.wait()
