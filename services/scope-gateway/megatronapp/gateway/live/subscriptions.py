"""One subscriber's queue over the topics that it has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.live.topics import DropPolicy, Topic


class SubscriberBehindError(UnavailableError):
    """The subscriber has taken too little for too long, and something that it must know was lost: begin anew."""


@dataclass(frozen=True, slots=True)
class Delivery:
    topic: Topic
    payload: bytes
    dropped: int
    """Messages of the topic that were dropped since the last delivery of it."""


@dataclass(slots=True)
class _Queue:
    """What waits of one topic, the oldest first."""

    topic: Topic
    waiting: dict[Hashable, bytes] = field(default_factory=dict)
    bytes: int = 0
    dropped: int = 0
    """Ever."""
    dropped_untold: int = 0

    @property
    def overfull(self) -> bool:
        return len(self.waiting) > self.topic.max_messages or self.bytes > self.topic.max_bytes


class Subscription:
    """Messages in the order in which they, or what they replaced last, were published. For one event loop."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._queues = {topic.name: _Queue(topic) for topic in topics}
        self._order: dict[tuple[str, Hashable], None] = {}
        self._numbers = count()
        self._filled = asyncio.Event()
        self._behind = ""
        """The topic that ended the subscription."""

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._order)

    @property
    def dropped(self) -> Mapping[str, int]:
        """By topic, of those of which any were: messages that the subscriber will never get."""
        return {name: queue.dropped for name, queue in self._queues.items() if queue.dropped}

    def put(self, topic: Topic, payload: bytes, key: Hashable = None) -> int:
        """Line a message up; returns how many had to be dropped for it. Key None: it replaces no other."""
        if self._behind:
            return 0
        queue, before = self._queues[topic.name], self._queues[topic.name].dropped
        unique = key is None or topic.policy is DropPolicy.NEVER
        place = ("number", next(self._numbers)) if unique else ("key", key)
        self._remove(queue, place)
        queue.waiting[place] = payload
        queue.bytes += len(payload)
        self._order[topic.name, place] = None
        while queue.overfull and not self._behind:
            if topic.policy is DropPolicy.OLDEST_FIRST:
                self._drop(queue, next(iter(queue.waiting)))
            else:
                self._end(topic)
        self._filled.set()
        return queue.dropped - before

    async def take(self) -> Delivery:
        """What has waited longest; waits for something. Raises SubscriberBehindError when the subscription has ended.

        Cancelled, it takes nothing."""
        while not self._order and not self._behind:
            self._filled.clear()
            await self._filled.wait()
        if self._behind:
            raise SubscriberBehindError(f"too much of {self._behind!r} was not taken; connect again")
        name, place = next(iter(self._order))
        queue = self._queues[name]
        payload = queue.waiting[place]
        self._remove(queue, place)
        untold, queue.dropped_untold = queue.dropped_untold, 0
        return Delivery(queue.topic, payload, untold)

    def _remove(self, queue: _Queue, place: Hashable) -> None:
        payload = queue.waiting.pop(place, None)
        if payload is not None:
            queue.bytes -= len(payload)
            del self._order[queue.topic.name, place]

    def _drop(self, queue: _Queue, place: Hashable) -> None:
        self._remove(queue, place)
        queue.dropped += 1
        queue.dropped_untold += 1

    def _end(self, topic: Topic) -> None:
        """Let go of all that waits: a subscriber that is behind must cost nothing until it has noticed."""
        self._behind = topic.name
        for queue in self._queues.values():
            for place in list(queue.waiting):
                self._drop(queue, place)
