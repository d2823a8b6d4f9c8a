"""A Redis in which somebody else writes: any entry on the topics, any bytes where findings are kept, any kind of value
under a name that the platform uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from pathlib import Path

from redis import asyncio as redis_asyncio
from redis.exceptions import RedisError

from megatronapp.core.bus import Topic
from megatronapp.core.bus.redis import RedisBus
from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.core.findings_store import FindingsStore
from megatronapp.core.findings_store.codec import encode
from megatronapp.core.findings_store.redis import RedisBackend
from megatronapp.core.leases import Leases
from tests.attack.inputs import TEXTS, any_value, as_json, damaged
from tests.attack.session import Harm
from tests.support.ports import free_port
from tests.support.redis import RedisServer

INNOCENT = "innocent"
SETTLE_SECONDS = 60.0
KEY = "megatronapp:findings-store"


class Redis:
    name = "redis"
    at_once = 16

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._heard: set[bytes] = set()
        self._number = 0

    async def start(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._server = RedisServer(free_port(), folder, detached=True)
        self._server.start()
        self._evil = redis_asyncio.Redis.from_url(self._server.url)
        self._bus = RedisBus(self._server.url)
        self._store = FindingsStore(RedisBackend(self._server.url))
        self._leases = Leases(self._server.url, "detector", "me", 10.0)
        self._readers = [asyncio.create_task(self._follow(topic)) for topic in Topic]
        await self.check()

    async def stop(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._leases.close()
        await self._store.close()
        await self._bus.close()
        await self._evil.aclose()
        self._server.stop()

    async def _follow(self, topic: Topic) -> None:
        async for messages in self._bus.follow(topic):
            self._heard |= {message.value for message in messages if message.key == INNOCENT}

    async def check(self) -> None:
        """What the innocent publishes is heard on every topic, what it has found is kept, and it gets its lease."""
        self._number += 1
        word = f"word-{self._number}".encode()
        for topic in Topic:
            self._heard.discard(word)
            await self._bus.publish(topic, INNOCENT, word)
            await self._until(f"{topic} is followed", word)
        finding = _finding(f"{INNOCENT}-{self._number}")
        if not await self._store.put(finding) or await self._store.get(finding.id) != finding:
            raise Harm("the innocent's finding is not kept")
        if finding.id not in {found.id for found in await self._store.find(run=INNOCENT)}:
            raise Harm("the innocent's finding is not found")
        await self._store.expire()
        if await self._leases.hold([INNOCENT]) != {INNOCENT} or "me" not in await self._leases.meet():
            raise Harm("the innocent does not get its lease")

    async def _until(self, what: str, word: bytes) -> None:
        until = time.monotonic() + SETTLE_SECONDS
        while word not in self._heard:
            if time.monotonic() > until or any(reader.done() for reader in self._readers):
                raise Harm(f"not in time: {what}")
            await asyncio.sleep(0.005)

    async def execute(self, chance: random.Random) -> None:
        door = chance.choice((self._entry, self._entry, self._kept, self._name))
        with contextlib.suppress(RedisError):  # Redis itself refuses what is of another kind
            await door(chance)

    async def _entry(self, chance: random.Random) -> None:
        """An entry of a topic: the fields of a message, others, fewer, more."""
        names = chance.choice(
            ([b"key", b"value"], [b"value", b"key"], [b"key"], [b"value"], [b"", b"x", b"key"], [b"a"])
        )
        fields = {name: _bytes(chance) for name in names}
        await self._evil.xadd(f"megatronapp:{chance.choice(list(Topic))}", fields, maxlen=2_000)  # type: ignore[arg-type]
        self.seen["entries"] += 1

    async def _kept(self, chance: random.Random) -> None:
        """A finding's row or body, or what was one."""
        place = chance.choice(("rows", "bodies"))
        good = encode(_finding("evil")) if place == "bodies" else as_json(["evil", "a/b", 1, 1, 1, 100])
        value = chance.choice((damaged(chance, good), _bytes(chance), as_json(any_value(chance))))
        await self._evil.hset(f"{KEY}:{place}", _id(chance), value)
        try:
            await self._store.get("evil")
            await self._store.find()
        except UnavailableError as error:
            raise Harm(f"findings can't be read: {error}") from error
        if chance.random() < 0.1:
            await self._store.expire()
        self.seen["kept"] += 1

    async def _name(self, chance: random.Random) -> None:
        """Any kind of value under the name of a run's lease: that run is nobody's then, and all others are."""
        run = chance.choice(("run-evil", "", "x" * 300))
        key = f"megatronapp:detector:{run}"
        await self._evil.delete(key)
        make = chance.choice((self._evil.set, self._evil.lpush, self._evil.sadd))
        await make(key, _bytes(chance))
        with contextlib.suppress(UnavailableError):
            await self._leases.hold([run])
        self.seen["names"] += 1


def _finding(id_: str) -> Finding:
    now = time.time_ns()
    return Finding(
        id=id_, run=INNOCENT, job="team/gpt", attempt=1, kind=Kind.SLOW_GPU, cause=Cause.COMPUTE, ranks=(1,),
        state=State.OPEN, opened_unix_ns=now, updated_unix_ns=now,
    )  # fmt: skip


def _id(chance: random.Random) -> bytes:
    return chance.choice((b"evil", chance.randbytes(5), chance.choice(TEXTS).encode("utf-8", "replace")[:200]))


def _bytes(chance: random.Random) -> bytes:
    text = chance.choice(TEXTS).encode("utf-8", "replace")
    return chance.choice((text, chance.randbytes(chance.choice((0, 1, 64, 4096)))))
