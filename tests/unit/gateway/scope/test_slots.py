"""What waits for a viewer is bounded by its credit and by bytes, and nobody else's subscription waits for it."""

import asyncio

import pytest

from megatronapp.core.scope.frame import Frame, pack, unpack
from megatronapp.gateway.scope.slots import MAX_WAITING_BYTES, Slots


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def frame(step: int, size: int = 4) -> bytes:
    return pack(Frame(dims=(size // 4,), step=step, payload=bytes(size)))


async def steps(slots: Slots, count: int) -> list[tuple[int, int, int]]:
    found = [unpack(await slots.take()) for _ in range(count)]
    return [(each.subscription, each.step, each.sequence) for each in found]


async def waits(slots: Slots) -> bool:
    try:
        await asyncio.wait_for(slots.take(), 0.01)
    except TimeoutError:
        return True
    return False


async def test_a_newer_frame_of_a_layer_takes_the_place_of_one_that_waits() -> None:
    slots = Slots(Clock())
    slots.open(1, 2, 0)

    dropped = [slots.offer(1, layer, frame(step), throttled=True) for step in (1, 2, 3) for layer in (0, 1)]

    assert dropped == [0, 0, 1, 1, 1, 1]
    assert await steps(slots, 2) == [(1, 3, 5), (1, 3, 6)]
    assert await waits(slots)


async def test_nothing_is_sent_without_credit() -> None:
    slots = Slots(Clock())
    slots.open(1, 0, 0)
    slots.offer(1, "a", frame(1), throttled=False)

    assert await waits(slots)
    slots.grant(1, 1)
    assert await steps(slots, 1) == [(1, 1, 1)]


async def test_subscriptions_take_turns() -> None:
    slots = Slots(Clock())
    for subscription in (1, 2):
        slots.open(subscription, 9, 0)
        for step in range(2):
            slots.offer(subscription, step, frame(step), throttled=False)

    assert [subscription for subscription, _, _ in await steps(slots, 4)] == [1, 2, 1, 2]


async def test_of_more_than_fits_the_oldest_go() -> None:
    slots = Slots(Clock())
    slots.open(1, 9, 0)
    size = MAX_WAITING_BYTES // 12 * 4

    dropped = sum(slots.offer(1, step, frame(step, size), throttled=False) for step in range(5))

    assert dropped == 3
    assert [step for _, step, _ in await steps(slots, 2)] == [3, 4]


async def test_a_layer_is_offered_no_more_often_than_asked_for() -> None:
    clock = Clock()
    slots = Slots(clock)
    slots.open(1, 9, 10)

    offered = []
    for clock.now in (0.0, 0.05, 0.11):
        offered.append(slots.offer(1, 0, frame(int(100 * clock.now)), throttled=True))

    assert offered == [0, 1, 1]
    assert await steps(slots, 1) == [(1, 11, 3)]


async def test_numbers_go_on_when_a_subscription_is_opened_anew() -> None:
    slots = Slots(Clock())
    for _ in range(2):
        slots.open(1, 1, 0)
        slots.offer(1, 0, frame(7), throttled=False)

    assert await steps(slots, 1) == [(1, 7, 2)]


@pytest.mark.parametrize("granted", [10**9, 2**32 - 1])
async def test_credit_is_bounded(granted: int) -> None:
    slots = Slots(Clock())
    slots.open(1, 0, 0)

    slots.grant(1, granted)

    assert slots._slots[1].credits == 4096


async def test_a_subscription_that_was_closed_gets_nothing() -> None:
    slots = Slots(Clock())
    slots.open(1, 1, 0)
    slots.close(1)

    assert slots.offer(1, 0, frame(1), throttled=False) == 0
    slots.grant(1, 1)
    assert await waits(slots)
