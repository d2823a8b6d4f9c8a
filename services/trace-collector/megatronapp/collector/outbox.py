"""What goes to the bus: in order, tried again while the bus is away, and known to the journal's trimming."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice

from megatronapp.core.bus import Bus, Topic
from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

BATCH = 1_000
"""Messages handed to the bus at once."""
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Item:
    position: int
    run: str
    value: bytes


class Outbox:
    """Publishes on Topic.STEPS. `oldest` is the journal position up to which everything has been published."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._items: deque[_Item] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    @property
    def oldest(self) -> int | None:
        """Position of the oldest message that is not on the bus yet."""
        return self._items[0].position if self._items else None

    def put(self, position: int, run: str, value: bytes) -> None:
        self._items.append(_Item(position, run, value))
        self._bytes += len(value)
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._items:
                batch = list(islice(self._items, BATCH))
                await self._publish([(item.run, item.value) for item in batch])
                for _ in batch:
                    self._bytes -= len(self._items.popleft().value)

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until everything is out, or the time is over."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self._items and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    async def _publish(self, messages: list[tuple[str, bytes]]) -> None:
        delay = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._bus.publish_all(Topic.STEPS, messages)
                return
            except UnavailableError as error:
                log.warning("bus_unavailable", error=str(error), waiting=len(self._items), retry_seconds=delay)
            except Exception:  # whatever it is, the collector goes on taking messages
                log.exception("bus_failed", waiting=len(self._items), retry_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_RETRY_SECONDS)
