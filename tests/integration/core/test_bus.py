"""One suite over both buses, against a real redis-server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, cast

import pytest
import redis

from megatronapp.core.bus import Bus, MemoryBus, Message, read_kept
from megatronapp.core.bus.redis import RedisBus
from megatronapp.core.errors import UnavailableError
from tests.support.redis import RedisServer


@pytest.fixture(params=["memory", "redis"])
async def bus(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[Bus]:
    bus: Bus = MemoryBus() if request.param == "memory" else RedisBus(redis_server.url)
    yield bus
    await bus.close()


async def take(stream: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await anext(stream) for _ in range(count)]


async def publish_numbers(bus: Bus, count: int, key: str = "run") -> None:
    for number in range(count):
        await bus.publish("steps", key, str(number).encode())


def values(messages: list[Message]) -> list[int]:
    return [int(m.value) for m in messages]


async def test_messages_arrive_in_order_with_their_key(bus: Bus) -> None:
    await publish_numbers(bus, 5, key="run-1")

    got = await take(bus.subscribe("steps", group="g", consumer="c"), 5)

    assert values(got) == [0, 1, 2, 3, 4]
    assert {m.key for m in got} == {"run-1"}


async def test_a_subscriber_waits_for_what_comes_later(bus: Bus) -> None:
    stream = bus.subscribe("steps", group="g", consumer="c")
    waiting = asyncio.create_task(take(stream, 1))
    await asyncio.sleep(0.05)

    await bus.publish("steps", "run", b"7")

    assert values(await waiting) == [7]


async def follow(bus: Bus, count: int, *, from_start: bool = True) -> list[Message]:
    """At least `count` messages of a new follower."""
    got: list[Message] = []
    async with asyncio.timeout(10), aclosing(bus.follow("steps", from_start=from_start)) as stream:  # type: ignore[type-var]
        while len(got) < count:
            got += await anext(stream)
    return got


async def publish_until_done(bus: Bus, listener: asyncio.Task[list[Message]]) -> None:
    """99, 100, …: when the listener begins is its own affair."""
    number = 99
    while not listener.done():
        await bus.publish("steps", "run", str(number).encode())
        number += 1
        await asyncio.sleep(0.02)


async def test_followers_see_everything_again_and_again(bus: Bus) -> None:
    await publish_numbers(bus, 1200)

    first, second = await follow(bus, 1200), await follow(bus, 1200)

    assert values(first) == values(second) == list(range(1200))
    assert {m.key for m in first} == {"run"}


async def test_the_newest_message_is_known_by_its_id(bus: Bus) -> None:
    nothing = await bus.newest("steps")
    await publish_numbers(bus, 3)

    newest = await bus.newest("steps")

    assert nothing == ""
    assert newest == (await follow(bus, 3))[-1].id


async def test_a_follower_may_start_at_the_end(bus: Bus) -> None:
    await publish_numbers(bus, 3)
    waiting = asyncio.create_task(follow(bus, 2, from_start=False))

    await publish_until_done(bus, waiting)

    first, *others = values(await waiting)
    assert first >= 99
    assert others == list(range(first + 1, first + 1 + len(others)))


async def test_many_messages_are_published_at_once_in_order(bus: Bus) -> None:
    await bus.publish_all("steps", [(f"run-{number % 3}", str(number).encode()) for number in range(2500)])

    got = await follow(bus, 2500)

    assert values(got) == list(range(2500))
    assert [m.key for m in got[:4]] == ["run-0", "run-1", "run-2", "run-0"]


async def test_a_topic_of_few_messages_keeps_few(bus: Bus) -> None:
    await bus.publish_all("hello-request", [("", b"") for _ in range(1000)])

    async with aclosing(bus.follow("hello-request")) as stream:  # type: ignore[type-var]
        assert len(await anext(stream)) < 500


async def test_every_group_sees_every_message(bus: Bus) -> None:
    await publish_numbers(bus, 3)

    first = await take(bus.subscribe("steps", group="detector", consumer="c"), 3)
    second = await take(bus.subscribe("steps", group="gateway", consumer="c"), 3)

    assert values(first) == values(second) == [0, 1, 2]


async def test_a_group_may_start_at_the_end(bus: Bus) -> None:
    await publish_numbers(bus, 3)
    stream = bus.subscribe("steps", group="late", consumer="c", from_start=False)
    waiting = asyncio.create_task(take(stream, 1))

    await publish_until_done(bus, waiting)

    assert values(await waiting)[0] >= 99


async def test_what_was_not_acked_is_delivered_again(bus: Bus) -> None:
    await publish_numbers(bus, 4)
    stream = bus.subscribe("steps", group="g", consumer="c")
    got = await take(stream, 3)
    await bus.ack(got[0], group="g")
    await bus.ack(got[2], group="g")
    await stream.aclose()  # type: ignore[attr-defined]

    again = await take(bus.subscribe("steps", group="g", consumer="c"), 2)

    assert values(again) == [1, 3]


async def test_an_acked_message_never_comes_back(bus: Bus) -> None:
    await publish_numbers(bus, 2)
    stream = bus.subscribe("steps", group="g", consumer="c")
    await bus.ack(*await take(stream, 2), group="g")
    await stream.aclose()  # type: ignore[attr-defined]
    await bus.publish("steps", "run", b"2")

    assert values(await take(bus.subscribe("steps", group="g", consumer="c"), 1)) == [2]


async def test_two_consumers_of_a_group_share_the_messages(bus: Bus) -> None:
    a, b = (bus.subscribe("steps", group="g", consumer=name) for name in "ab")
    seen: list[int] = []

    async def consume(stream: AsyncIterator[Message]) -> None:
        async for message in stream:
            seen.append(int(message.value))
            await bus.ack(message, group="g")

    tasks = [asyncio.create_task(consume(s)) for s in (a, b)]
    await publish_numbers(bus, 50)
    async with asyncio.timeout(10):
        while len(seen) < 50:
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()

    assert sorted(seen) == list(range(50))


async def test_topics_do_not_mix(bus: Bus) -> None:
    await bus.publish("findings", "run", b"1")
    await bus.publish("steps", "run", b"2")

    assert values(await take(bus.subscribe("steps", group="g", consumer="c"), 1)) == [2]


async def test_memory_bus_drops_the_oldest_when_nobody_reads() -> None:
    bus = MemoryBus(max_messages=3)
    await publish_numbers(bus, 10)

    assert values(await take(bus.subscribe("steps", group="g", consumer="c"), 3)) == [7, 8, 9]


async def test_redis_bus_goes_on_after_a_restart(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(persistent=True)
    bus = RedisBus(server.url)
    stream = bus.subscribe("steps", group="g", consumer="c")
    await publish_numbers(bus, 2)
    for message in await take(stream, 2):
        await bus.ack(message, group="g")

    server.stop()
    with pytest.raises(UnavailableError):
        await bus.publish("steps", "run", b"lost")
    server.start()
    await bus.publish("steps", "run", b"42")

    assert values(await take(stream, 1)) == [42]
    await bus.close()


async def test_a_follower_goes_on_after_a_restart(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(persistent=True)
    bus = RedisBus(server.url)
    await publish_numbers(bus, 2)
    stream = bus.follow("steps")
    assert values(list(await anext(stream))) == [0, 1]

    server.stop()
    with pytest.raises(UnavailableError):
        await bus.publish("steps", "run", b"lost")
    server.start()
    await bus.publish("steps", "run", b"42")

    async with asyncio.timeout(10):
        assert values(list(await anext(stream))) == [42]
    await stream.aclose()  # type: ignore[attr-defined]
    await bus.close()


@pytest.mark.parametrize("restarted", [False, True], ids=["flushed", "restarted without data"])
async def test_a_follower_hears_what_comes_after_data_was_lost_and_the_clock_stepped_back(
    start_redis: Callable[..., RedisServer], restarted: bool
) -> None:
    server = start_redis()
    bus = RedisBus(server.url)
    hour_ms = 3_600_000
    with redis.Redis(port=server.port) as client:
        # Redis numbers entries by its clock, which stands an hour ahead here.
        ahead = f"{int(client.time()[0]) * 1_000 + hour_ms}-0"
        client.xadd("megatronapp:steps", {"key": "run", "value": "1"}, id=ahead)
        stream = bus.follow("steps")
        assert values(list(await anext(stream))) == [1]
        if restarted:
            server.stop()
            server.start()
        else:
            client.flushall()

    other = RedisBus(server.url)
    await other.publish("steps", "run", b"2")
    await other.publish("steps", "run", b"3")
    got: list[Message] = []
    async with asyncio.timeout(20):
        while len(got) < 2:
            got += await anext(stream)
    await other.publish("steps", "run", b"4")
    async with asyncio.timeout(20):
        got += await anext(stream)

    assert values(got) == [2, 3, 4]
    await stream.aclose()  # type: ignore[attr-defined]
    await bus.close()
    await other.close()


async def test_a_follower_leaves_nothing_behind(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url)
    await publish_numbers(bus, 1)
    await follow(bus, 1)

    with redis.Redis(port=redis_server.port) as client:
        assert client.xinfo_groups("megatronapp:steps") == []
    await bus.close()


NO_MESSAGES: list[dict[bytes, bytes]] = [
    {b"value": b"1"},
    {b"a": b"run", b"b": b"1"},
    {b"key": b"run", b"value": b"1", b"more": b""},
    {b"key": b"\xff", b"value": b"1"},
]


def add(server: RedisServer, entries: Iterable[dict[bytes, bytes]]) -> None:
    """As anybody may who reaches Redis."""
    with redis.Redis(port=server.port) as client:
        for entry in entries:
            client.xadd("megatronapp:steps", cast("Any", entry))


async def test_a_follower_passes_over_what_is_no_message_and_says_so_once(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    bus = RedisBus(redis_server.url)
    add(redis_server, NO_MESSAGES)
    async with aclosing(bus.follow("steps")) as stream:  # type: ignore[type-var]
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.1)  # a read of nothing else
        await publish_numbers(bus, 2)
        got = list(await waiting)
        add(redis_server, NO_MESSAGES)
        await bus.publish("steps", "run", b"2")
        async with asyncio.timeout(10):
            while len(got) < 3:
                got += await anext(stream)

    assert values(got) == [0, 1, 2]
    assert capsys.readouterr().out.count("no_message_on_the_bus") == 1
    await bus.close()


async def test_what_is_no_message_never_comes_back_to_a_group(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url)
    add(redis_server, NO_MESSAGES)
    await publish_numbers(bus, 1)

    (message,) = await take(bus.subscribe("steps", group="g", consumer="c"), 1)

    with redis.Redis(port=redis_server.port) as client:
        pending = client.xpending_range("megatronapp:steps", "g", "-", "+", 10)
    assert [entry["message_id"].decode() for entry in cast("Any", pending)] == [message.id]
    await bus.close()


async def test_what_is_kept_is_read_to_its_end_across_what_is_no_message(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url)
    await publish_numbers(bus, 10)
    add(redis_server, NO_MESSAGES * 200)
    await bus.publish_all("steps", [("run", str(number).encode()) for number in range(10, 1_010)])
    add(redis_server, NO_MESSAGES)

    async with asyncio.timeout(10):
        got = [message async for message in read_kept(bus, "steps")]

    assert values(got) == list(range(1_010))
    assert await bus.newest("steps") == got[-1].id
    await bus.close()


async def test_where_nothing_is_a_message_none_is_the_newest(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url)
    add(redis_server, NO_MESSAGES)

    assert await bus.newest("steps") == ""
    await bus.close()


async def test_an_absent_redis_is_a_clear_error(free_port: int) -> None:
    bus = RedisBus(f"redis://127.0.0.1:{free_port}/0")

    with pytest.raises(UnavailableError, match="Redis does not answer"):
        await bus.ping()
    await bus.close()


async def test_many_publishers_at_once_lose_nothing(bus: Bus) -> None:
    await asyncio.gather(*(publish_numbers(bus, 3, key=str(n)) for n in range(200)))

    got = await take(bus.subscribe("steps", group="g", consumer="c"), 600)

    assert {m.key for m in got} == {str(n) for n in range(200)}
