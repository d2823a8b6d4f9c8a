"""One subscriber's queue: in order, bounded, and honest about what it leaves out."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.gateway.live import Delivery, DropPolicy, SubscriberBehindError, Subscription, Topic

STATES = Topic("states", DropPolicy.LATEST_PER_KEY, max_messages=8, max_bytes=200)
FRAMES = Topic("frames", DropPolicy.OLDEST_FIRST, max_messages=5, max_bytes=100)
COMMANDS = Topic("commands", DropPolicy.NEVER, max_messages=4, max_bytes=60)
TOPICS = (STATES, FRAMES, COMMANDS)


async def drain(subscription: Subscription) -> list[Delivery]:
    return [await subscription.take() for _ in range(len(subscription))]


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


async def test_what_waited_longest_goes_first_whatever_its_topic() -> None:
    subscription = Subscription(TOPICS)
    for topic, payload in ((FRAMES, b"1"), (STATES, b"2"), (FRAMES, b"3"), (COMMANDS, b"4")):
        subscription.put(topic, payload)

    assert payloads(await drain(subscription)) == [b"1", b"2", b"3", b"4"]


async def test_taking_waits_for_something_and_takes_nothing_when_cancelled() -> None:
    subscription = Subscription(TOPICS)
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await subscription.take()
    taking = asyncio.create_task(subscription.take())
    await asyncio.sleep(0)
    assert not taking.done()

    subscription.put(STATES, b"news")

    assert (await taking).payload == b"news"


@pytest.mark.parametrize("topic", [STATES, FRAMES])
async def test_a_newer_message_of_a_key_replaces_the_one_that_waits(topic: Topic) -> None:
    subscription = Subscription(TOPICS)
    for key, payload in (("a", b"a1"), ("b", b"b1"), ("a", b"a2")):
        subscription.put(topic, payload, key)

    assert payloads(await drain(subscription)) == [b"b1", b"a2"]
    assert subscription.dropped == {}


async def test_keys_of_topics_do_not_mix_nor_do_those_without_one() -> None:
    subscription = Subscription(TOPICS)
    for topic in (STATES, FRAMES):
        for key in (0, None, 0, None):
            subscription.put(topic, topic.name.encode(), key)

    assert len(subscription) == 6


async def test_of_a_stream_the_oldest_go_and_the_next_delivery_says_how_many() -> None:
    subscription = Subscription(TOPICS)

    dropped = [subscription.put(FRAMES, bytes([number]) * 30) for number in range(6)]
    deliveries = await drain(subscription)
    subscription.put(FRAMES, b"next")

    assert dropped == [0, 0, 0, 1, 1, 1]
    assert [(d.payload[0], d.dropped) for d in deliveries] == [(3, 3), (4, 0), (5, 0)]
    assert (await subscription.take()).dropped == 0
    assert subscription.dropped == {"frames": 3}


async def test_a_message_larger_than_the_room_is_dropped_alone() -> None:
    subscription = Subscription([FRAMES])

    assert subscription.put(FRAMES, bytes(101)) == 1
    subscription.put(FRAMES, b"small")

    assert [(d.payload, d.dropped) for d in await drain(subscription)] == [(b"small", 1)]


@pytest.mark.parametrize("topic", [STATES, COMMANDS])
async def test_where_nothing_may_be_left_out_too_much_ends_the_subscription_and_frees_its_memory(topic: Topic) -> None:
    subscription = Subscription(TOPICS)
    for number in range(topic.max_messages):
        subscription.put(topic, b"x", number)
    subscription.put(FRAMES, b"frame")
    before = len(subscription)

    lost = subscription.put(topic, b"x", "one too many")

    assert (before, lost) == (topic.max_messages + 1, topic.max_messages + 1)
    assert len(subscription) == 0
    assert subscription.put(FRAMES, b"later") == 0
    for _ in range(2):
        with pytest.raises(SubscriberBehindError, match=topic.name):
            await subscription.take()


async def test_one_who_waits_is_told_that_the_subscription_has_ended() -> None:
    subscription = Subscription([COMMANDS])
    taking = asyncio.create_task(subscription.take())
    await asyncio.sleep(0)

    subscription.put(COMMANDS, bytes(61))

    with pytest.raises(SubscriberBehindError):
        await taking


@given(
    st.lists(
        st.tuples(st.sampled_from([STATES, FRAMES]), st.none() | st.integers(0, 6), st.integers(0, 40), st.booleans()),
        max_size=80,
    )
)
def test_whatever_is_published_the_queue_is_bounded_and_keeps_the_newest_of_each_state(
    puts: list[tuple[Topic, int | None, int, bool]],
) -> None:
    async def play() -> None:
        subscription = Subscription(TOPICS)
        newest: dict[int, bytes] = {}
        got: list[Delivery] = []
        for number, (topic, key, size, taken) in enumerate(puts):
            payload = number.to_bytes(2, "big") + bytes(size)
            subscription.put(topic, payload, key)
            if topic is STATES and key is not None:
                newest[key] = payload
            assert len(subscription) <= sum(each.max_messages for each in TOPICS)
            if taken and len(subscription):
                got.append(await subscription.take())
        try:
            waiting = await drain(subscription)
            assert sum(len(each.payload) for each in waiting) <= sum(each.max_bytes for each in TOPICS)
            got += waiting
            ended = False
            subscription.put(STATES, b"")
            await subscription.take()
        except SubscriberBehindError:
            ended = True
        numbers = [payload[:2] for payload in payloads(got)]
        assert numbers == sorted(numbers)
        assert ended or set(newest.values()) <= set(payloads(got))

    asyncio.run(play())
