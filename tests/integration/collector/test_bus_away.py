"""Redis away and back again: ranks are acknowledged meanwhile, and nothing is missing afterwards."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatronapp.core.bus import Topic, connect
from megatronapp.v1 import trace_pb2
from tests.integration.collector.conftest import StartProcess
from tests.integration.collector.support import RankStream, hello, identity, summary
from tests.support.ports import free_port


class Redis:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--dir", str(self._folder), "--bind", "127.0.0.1", "--save", ""],
            stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.stop()


async def steps_on_the_bus(url: str, count: int) -> list[int]:
    bus, steps = connect(url), []
    async with asyncio.timeout(60):
        async for message in bus.subscribe(Topic.STEPS, group="test", consumer="test"):
            body = trace_pb2.RankMessage.FromString(message.value).message
            if body.HasField("summary"):
                steps.append(body.summary.step)
            if len(steps) == count:
                break
    await bus.close()
    return steps


async def test_summaries_reach_the_bus_once_it_is_there(process: StartProcess, redis: Redis) -> None:
    collector = process(REDIS_URL=redis.url, FLUSH_SECONDS="0.2")
    await collector.until_ready()
    rank = RankStream(collector.address)

    await rank.send(hello(identity()), *[summary(step, step) for step in range(1, 31)])
    await rank.until_acked(30)
    redis.start()

    assert await steps_on_the_bus(redis.url, 30) == list(range(1, 31))
    await rank.close()


async def test_what_waited_for_the_bus_outlives_the_collector(process: StartProcess, redis: Redis) -> None:
    collector = process(REDIS_URL=redis.url, FLUSH_SECONDS="0.1", SEGMENT_BYTES="4096")
    await collector.until_ready()
    rank = RankStream(collector.address)
    await rank.send(hello(identity()), *[summary(step, step) for step in range(1, 31)])
    await rank.until_acked(30)
    await asyncio.sleep(0.5)  # the store has them, the bus has not

    collector.kill()
    await rank.cut()
    redis.start()
    collector.start()

    assert await steps_on_the_bus(redis.url, 30) == list(range(1, 31))
