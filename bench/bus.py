"""What a step of 4,096 ranks costs on the bus: a summary and a heartbeat of each, published and followed; messages per
CPU-second of this process, without Redis's own.

python -m bench.bus
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from megatronapp.core.bus import Bus, MemoryBus, Topic
from megatronapp.core.bus.redis import RedisBus
from tests.support.redis import RedisServer

RANKS = 4_096
MESSAGE_BYTES = 700
"""A summary of some twelve rows, in its envelope."""
FEW = 512


async def measure(name: str, bus: Bus) -> None:
    value = os.urandom(MESSAGE_BYTES)
    singly = await seconds_of(_publish_singly(bus, value))
    together = await seconds_of(bus.publish_all(Topic.STEPS, [("run", value)] * (2 * RANKS)))
    followed = await seconds_of(_follow(bus, FEW + 2 * RANKS))
    rates = (FEW / singly, 2 * RANKS / together, (FEW + 2 * RANKS) / followed)
    print(f"{name:8}" + "".join(f"{rate:14,.0f}" for rate in rates))


async def _publish_singly(bus: Bus, value: bytes) -> None:
    for _ in range(FEW):
        await bus.publish(Topic.STEPS, "run", value)


async def _follow(bus: Bus, count: int) -> None:
    async with aclosing(bus.follow(Topic.STEPS)) as stream:  # type: ignore[type-var]
        while count > 0:
            count -= len(await anext(stream))


async def seconds_of(work: object) -> float:
    begun = time.process_time()
    await work  # type: ignore[misc]
    return time.process_time() - begun


async def compare(redis_url: str) -> None:
    print(f"{'messages/s':8}{'one by one':>13}{'together':>14}{'followed':>14}")
    for name, bus in (("memory", MemoryBus()), ("redis", RedisBus(redis_url))):
        await measure(name, bus)
        await bus.close()


def main() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(port, Path(folder))
        server.start()
        try:
            asyncio.run(compare(server.url))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
