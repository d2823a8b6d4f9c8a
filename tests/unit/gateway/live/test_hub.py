"""Publishers and subscribers: everybody gets their own topics, and one who stops costs the others nothing."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.live import DropPolicy, Hub, SubscriberBehindError, Subscription, Topic
from megatronapp.gateway.metrics import GatewayMetrics

DROPPED = "megatronapp_gateway_live_dropped_total"
FRAMES = Topic("frames", DropPolicy.OLDEST_FIRST, max_messages=64, max_bytes=1 << 20)
"""Binary, as tensors will be."""
STATES = Topic("states", DropPolicy.LATEST_PER_KEY, max_messages=100, max_bytes=1 << 20)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def hub(registry: CollectorRegistry) -> Hub:
    return Hub(60, GatewayMetrics(registry).live_dropped)


async def test_a_payload_goes_to_those_who_asked_for_its_topic_and_is_kept_once(hub: Hub) -> None:
    with hub.subscribe([FRAMES, STATES]) as both, hub.subscribe([STATES]) as one:
        frame, state = b"\x00\xff" * 1000, b"{}"
        hub.publish(FRAMES, frame)
        hub.publish(STATES, state, "job")

        assert (len(both), len(one), len(hub)) == (2, 1, 2)
        assert (await both.take()).payload is frame
        assert (await both.take()).payload is (await one.take()).payload is state
        assert hub.wanted(FRAMES)
    assert not hub.wanted(FRAMES)
    assert len(hub) == 0
    hub.publish(FRAMES, b"to nobody")


def test_only_so_many_may_subscribe(registry: CollectorRegistry) -> None:
    hub = Hub(1, GatewayMetrics(registry).live_dropped)

    with hub.subscribe([STATES]), pytest.raises(UnavailableError, match="most that are"), hub.subscribe([STATES]):
        pass


async def test_one_who_has_stopped_slows_nobody_and_holds_little(hub: Hub, registry: CollectorRegistry) -> None:
    frames, fast = 2_000, 50

    async def follow(subscription: Subscription, got: list[int]) -> None:
        while len(got) < frames:
            got.append(int.from_bytes((await subscription.take()).payload[:4], "big"))

    seen: list[list[int]] = [[] for _ in range(fast)]
    with ExitStack() as stack:
        stopped = stack.enter_context(hub.subscribe([FRAMES, STATES]))
        async with asyncio.TaskGroup() as tasks:
            for got in seen:
                tasks.create_task(follow(stack.enter_context(hub.subscribe([FRAMES])), got))
            for number in range(frames):
                hub.publish(FRAMES, number.to_bytes(4, "big") + bytes(32_000))
                await asyncio.sleep(0)
        held = [(await stopped.take()).payload for _ in range(len(stopped))]

    assert seen == [list(range(frames))] * fast
    newest = int.from_bytes(held[0][:4], "big")
    assert sum(map(len, held)) <= FRAMES.max_bytes
    assert newest >= frames - FRAMES.max_messages
    assert registry.get_sample_value(DROPPED, {"topic": "frames"}) == newest


async def test_one_who_misses_a_state_is_sent_away_and_the_others_go_on(hub: Hub, registry: CollectorRegistry) -> None:
    with hub.subscribe([STATES]) as stopped, hub.subscribe([STATES]) as other:
        for number in range(1_000):
            hub.publish(STATES, b"state", number)
            assert (await other.take()).payload == b"state"

        with pytest.raises(SubscriberBehindError):
            await stopped.take()

    assert registry.get_sample_value(DROPPED, {"topic": "states"}) == STATES.max_messages + 1
