"""Events are kept before they are shown, and another ring goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.scope.events import Ring
from megatronapp.gateway.scope.kept_events import KeptEvents, restored
from megatronapp.v1 import scope_pb2


class FakeRegistry:
    """`kept` and `append` of a list."""

    def __init__(self) -> None:
        self.lists: dict[str, list[bytes]] = {}
        self.away = False
        self.shown_before: list[int] = []
        self.ring: Ring | None = None

    async def append(self, name: str, values: Sequence[bytes], most: int, seconds: float) -> None:
        if self.ring is not None:
            self.shown_before.append(self.ring.offset)
        if self.away:
            raise UnavailableError("away")
        self.lists[name] = [*self.lists.get(name, []), *values][-most:]

    async def kept(self, name: str) -> list[bytes]:
        return self.lists.get(name, [])


def event(step: int) -> scope_pb2.ScopeEvent:
    return scope_pb2.ScopeEvent(series=scope_pb2.ScopeSeries(name="loss", step=step))


async def written(registry: FakeRegistry, ring: Ring, steps: range, size: int = 100) -> None:
    kept = KeptEvents(registry, "r", ring, size)  # type: ignore[arg-type]
    task = asyncio.create_task(kept.run())
    for step in steps:
        kept.append(event(step), None)
    await ring.wait(ring.offset + len(steps) - 1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_an_event_is_kept_before_anybody_sees_it() -> None:
    registry, ring = FakeRegistry(), Ring(100)
    registry.ring = ring

    await written(registry, ring, range(1, 4))

    assert (registry.shown_before, ring.offset) == ([0], 3)


async def test_another_ring_goes_on_with_the_same_history() -> None:
    registry, ring = FakeRegistry(), Ring(100)
    await written(registry, ring, range(1, 4))

    again = await restored(registry, "r", 100)  # type: ignore[arg-type]

    assert (again.epoch, again.offset, again.kept()) == (ring.epoch, 3, ring.kept())
    assert again.keeps(ring.epoch, 1)
    await written(registry, again, range(4, 5))
    assert (again.offset, len(again.after(3))) == (4, 1)


async def test_what_was_kept_no_more_is_a_gap() -> None:
    registry, ring = FakeRegistry(), Ring(100)
    await written(registry, ring, range(1, 9), size=3)

    again = await restored(registry, "r", 100)  # type: ignore[arg-type]

    assert [again.keeps(ring.epoch, offset) for offset in (4, 5, 8, 9)] == [False, True, True, False]


async def test_events_that_could_not_be_kept_are_shown_under_another_epoch() -> None:
    registry, ring = FakeRegistry(), Ring(100)
    before = ring.epoch
    registry.away = True

    await written(registry, ring, range(1, 3))

    assert ring.offset == 2
    assert ring.epoch != before
    assert (await restored(registry, "r", 100)).offset == 0  # type: ignore[arg-type]
