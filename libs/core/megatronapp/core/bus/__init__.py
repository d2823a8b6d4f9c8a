"""The bus between services: topics of byte messages, read by consumer groups."""

from megatronapp.core.bus.base import Bus, Message, Topic
from megatronapp.core.bus.kept import read_kept
from megatronapp.core.bus.memory import MemoryBus

__all__ = ["Bus", "MemoryBus", "Message", "Topic", "connect", "read_kept"]


def connect(redis_url: str | None) -> Bus:
    """The Redis bus at this URL, or without one the bus inside this process."""
    if not redis_url:
        return MemoryBus()
    from megatronapp.core.bus.redis import RedisBus  # the extra `redis` is needed only here

    return RedisBus(redis_url)
