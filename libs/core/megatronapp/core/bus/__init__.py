"""The bus between services: topics of byte messages, read by consumer groups."""

from megatronapp.core.bus.base import Bus, Message, Topic
from megatronapp.core.bus.memory import MemoryBus

__all__ = ["Bus", "MemoryBus", "Message", "Topic"]
