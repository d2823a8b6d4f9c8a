"""A topic: what its messages are worth to a subscriber that is behind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DropPolicy(StrEnum):
    """What happens to messages that wait for a subscriber, and when too many do."""

    LATEST_PER_KEY = "latest per key"
    """States: a message replaces the one of its key that waits. Too many keys end the subscription, since a state that
    is left out would never be known; the subscriber begins anew with a snapshot."""
    OLDEST_FIRST = "oldest first"
    """A stream of which the newest is worth most: the oldest go, counted. A message replaces one of its key, too."""
    NEVER = "never"
    """Each message counts: too many end the subscription."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    policy: DropPolicy
    max_messages: int
    """That wait for one subscriber."""
    max_bytes: int
    """Of their payloads."""
