"""What waits for one viewer: of each subscription the newest frame of each layer, sent as the viewer grants credits.

A credit is granted when a frame was painted or replaced, so that what is on the way is bounded by the viewer itself. A
frame of a generation's step is not replaced by the next step's: it holds other rows. Of those the oldest go when too
much waits. Sequence numbers count what was made, so that a gap tells the viewer what it has missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from megatronapp.core.scope.frame import addressed

MAX_CREDITS = 4096
MAX_WAITING_BYTES = 4 << 20
"""Of one subscription."""


@dataclass(slots=True)
class _Slot:
    credits: int
    min_interval_seconds: float
    sequence: int = 0
    waiting: dict[Hashable, tuple[int, bytes]] = field(default_factory=dict)
    """The oldest first."""
    waiting_bytes: int = 0
    offered_at: dict[Hashable, float] = field(default_factory=dict)

    def put(self, key: Hashable, frame: bytes) -> int:
        """How many frames the viewer will never get because of it."""
        self.sequence += 1
        dropped = self.remove(key)
        self.waiting[key] = (self.sequence, frame)
        self.waiting_bytes += len(frame)
        while self.waiting_bytes > MAX_WAITING_BYTES and len(self.waiting) > 1:
            dropped += self.remove(next(iter(self.waiting)))
        return dropped

    def remove(self, key: Hashable) -> int:
        found = self.waiting.pop(key, None)
        if found is None:
            return 0
        self.waiting_bytes -= len(found[1])
        return 1


class Slots:
    """For one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots: dict[int, _Slot] = {}
        self._ready = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slots)

    def open(self, subscription: int, granted: int, max_fps: float) -> None:
        """Also anew: what waited is gone, its numbers go on."""
        before = self._slots.pop(subscription, None)
        slot = _Slot(min(max(granted, 0), MAX_CREDITS), 1 / max_fps if max_fps > 0 else 0.0)
        slot.sequence = before.sequence if before else 0
        self._slots[subscription] = slot

    def close(self, subscription: int) -> None:
        self._slots.pop(subscription, None)

    def grant(self, subscription: int, frames: int) -> None:
        slot = self._slots.get(subscription)
        if slot is not None:
            slot.credits = min(slot.credits + frames, MAX_CREDITS)
            self._ready.set()

    def offer(self, subscription: int, key: Hashable, frame: bytes, *, throttled: bool) -> int:
        """Line a frame up in place of the one of its key; `throttled`: at most max_fps of one key. Returns how many
        frames the viewer will never get because of it."""
        slot = self._slots.get(subscription)
        if slot is None:
            return 0
        now = self._clock()
        if throttled and now - slot.offered_at.get(key, -1e9) < slot.min_interval_seconds:
            slot.sequence += 1
            return 1
        if throttled:
            slot.offered_at[key] = now
        dropped = slot.put(key, frame)
        self._ready.set()
        return dropped

    async def take(self) -> bytes:
        """The next frame of a subscription that has credit, addressed; subscriptions take turns. Cancelled, it takes
        nothing."""
        while True:
            for subscription, slot in self._slots.items():
                if slot.credits and slot.waiting:
                    sequence, frame = slot.waiting[key := next(iter(slot.waiting))]
                    slot.remove(key)
                    slot.credits -= 1
                    self._slots[subscription] = self._slots.pop(subscription)
                    return addressed(frame, subscription, sequence)
            self._ready.clear()
            await self._ready.wait()
