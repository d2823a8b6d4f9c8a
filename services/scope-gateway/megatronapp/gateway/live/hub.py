"""Publishers and subscribers meet here. Nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import Counter

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.live.subscriptions import Subscription
from megatronapp.gateway.live.topics import Topic


class Hub:
    """A payload is kept once, however many it waits for."""

    def __init__(self, max_subscribers: int, dropped: Counter) -> None:
        """`dropped` has the label `topic`."""
        self._max_subscribers = max_subscribers
        self._dropped = dropped
        self._subscribers = 0
        self._of_topic: dict[str, dict[Subscription, None]] = {}

    def __len__(self) -> int:
        """Subscribers."""
        return self._subscribers

    def wanted(self, topic: Topic) -> bool:
        """Whether anybody listens: else a payload need not be made."""
        return bool(self._of_topic.get(topic.name))

    @contextmanager
    def subscribe(self, topics: Iterable[Topic]) -> Iterator[Subscription]:
        """A subscription until the block ends. Raises UnavailableError when there are too many."""
        if self._subscribers >= self._max_subscribers:
            raise UnavailableError(f"{self._max_subscribers} viewers are connected, which is the most that are served")
        chosen = tuple(topics)
        subscription = Subscription(chosen)
        self._subscribers += 1
        for topic in chosen:
            self._of_topic.setdefault(topic.name, {})[subscription] = None
        try:
            yield subscription
        finally:
            self._subscribers -= 1
            for topic in chosen:
                del self._of_topic[topic.name][subscription]

    def publish(self, topic: Topic, payload: bytes, key: Hashable = None) -> None:
        """Line a message up for everybody who listens. `key` names the thing whose state it is; None: no such thing."""
        dropped = sum(subscription.put(topic, payload, key) for subscription in self._of_topic.get(topic.name, ()))
        if dropped:
            self._dropped.labels(topic.name).inc(dropped)
