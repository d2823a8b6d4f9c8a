"""The bus between processes: Redis Streams. A follower keeps its own place; groups are for work that is shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Any, cast

from redis import asyncio as redis_asyncio
from redis.exceptions import RedisError, ResponseError

from megatronapp.core.bus.base import KEPT_MESSAGES, READ_COUNT, Message, kept
from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.redis_client import connect

log = get_logger(__name__)

READ_BLOCK_MS = 1_000
CLAIM_IDLE_MS = 30_000
RETRY_SECONDS = 0.5
MAX_CONNECTIONS = 32
"""More callers wait for one of them."""
PIPELINE_MESSAGES = 1_000
"""Sent before the answers are read, so that neither side holds more than this."""
FIRST = "0-0"
FIELDS = [b"key", b"value"]


class RedisBus:
    """See `Bus` for what it promises. Each topic is one stream that keeps about its newest `max_messages`, or fewer
    (base.KEPT_OF_TOPIC).

    A consumer that died is replaced by one of the same name at once, by one of another name after 30 s. Entries that
    are no messages, which somebody else has put there, are passed over.
    """

    def __init__(self, url: str, *, max_messages: int = KEPT_MESSAGES, prefix: str = "megatronapp") -> None:
        self._redis: redis_asyncio.Redis = connect(url, 10.0, 5.0, MAX_CONNECTIONS)
        # As they come: the client would make a dict of each entry, which takes longer than reading it.
        for command in ("XREAD", "XREADGROUP", "XREVRANGE", "XAUTOCLAIM"):
            self._redis.set_response_callback(command, cast("Any", _as_it_is))
        self._max_messages = max_messages
        self._prefix = prefix
        self._warned: set[str] = set()
        """Topics that had an entry that is no message."""

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        try:
            await self._redis.xadd(self._stream(topic), _fields(key, value), maxlen=kept(topic, self._max_messages))
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not take messages: {error}") from error

    async def publish_all(self, topic: str, messages: Iterable[tuple[str, bytes]]) -> None:
        stream, most = self._stream(topic), kept(topic, self._max_messages)
        rest = iter(messages)
        try:
            while chunk := list(islice(rest, PIPELINE_MESSAGES)):
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for key, value in chunk:
                        pipeline.xadd(stream, _fields(key, value), maxlen=most)
                    await pipeline.execute()
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not take messages: {error}") from error

    async def newest(self, topic: str) -> str:
        stream = self._stream(topic)
        count, before = 1, "+"
        try:
            while entries := cast("list[Any]", await self._redis.xrevrange(stream, before, count=count)):
                if messages := self._messages(topic, entries):
                    return messages[0].id
                count, before = READ_COUNT, f"({entries[-1][0].decode()}"
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not answer: {error}") from error
        return ""

    async def follow(self, topic: str, *, from_start: bool = True) -> AsyncIterator[Sequence[Message]]:
        stream = self._stream(topic)
        after = FIRST if from_start else ""
        silent = False
        found: list[Message] = []
        while True:
            lacking = READ_COUNT - len(found)
            try:
                after = after or await self._newest(stream) or FIRST
                if silent and await self._is_behind(stream, after):
                    log.warning("bus_lost_its_messages", topic=topic)
                    after = FIRST
                answer = await self._redis.xread({stream: after}, count=lacking, block=READ_BLOCK_MS)
            except (RedisError, OSError) as error:
                await _away(topic, error)
                silent = True
                continue
            entries = _entries(answer)
            silent = not entries
            if entries:
                after = entries[-1][0].decode()
                found += self._messages(topic, entries)
            # Readers take fewer than READ_COUNT for the end: what was passed over on the way there is made up for.
            if found and (len(entries) < lacking or len(found) == READ_COUNT):
                yield found
                found = []

    async def subscribe(
        self, topic: str, *, group: str, consumer: str, from_start: bool = True
    ) -> AsyncIterator[Message]:
        start = "0" if from_start else "$"
        cursor = "0"
        while True:
            try:
                await self._join(topic, group, start)
                entries, cursor = await self._read(topic, group, consumer, cursor)
                messages = self._messages(topic, entries)
                await self._give_up(topic, group, entries, messages)
            except (RedisError, OSError) as error:
                await _away(topic, error)
                cursor, start = "0", "0"
                continue
            for message in messages:
                yield message

    async def ack(self, *messages: Message, group: str) -> None:
        if not messages:
            return
        try:
            await self._redis.xack(self._stream(messages[0].topic), group, *(message.id for message in messages))
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not take acks: {error}") from error

    async def ping(self) -> None:
        try:
            await cast("Any", self._redis.ping())
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not answer: {error}") from error

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    def _stream(self, topic: str) -> str:
        return f"{self._prefix}:{topic}"

    def _messages(self, topic: str, entries: Iterable[Any]) -> list[Message]:
        """Those of the entries that are messages."""
        found: list[Message] = []
        for entry in entries:
            try:
                if entry[1] is not None:  # else it was deleted before it was acked
                    found.append(_message(topic, entry))
            except ValueError as error:
                if topic not in self._warned:
                    log.warning("no_message_on_the_bus", topic=topic, id=entry[0].decode(), reason=str(error))
                self._warned.add(topic)
        return found

    async def _give_up(self, topic: str, group: str, entries: Sequence[Any], messages: Sequence[Message]) -> None:
        """Ack the entries that are no messages: nobody else could."""
        if len(messages) < len(entries):
            known = {message.id for message in messages}
            ids = [entry[0] for entry in entries if entry[0].decode() not in known]
            await self._redis.xack(self._stream(topic), group, *ids)

    async def _newest(self, stream: str) -> str:
        """Id of the newest entry. "$" in XREAD would forget what comes between two reads."""
        entries: Any = await self._redis.xrevrange(stream, count=1)
        return str(entries[0][0].decode()) if entries else ""

    async def _is_behind(self, stream: str, after: str) -> bool:
        """Whether the stream was lost and begun again by a clock that stands before this id. Redis makes ids of its
        clock's time: a follower would wait for it to come round, deaf to all that is published meanwhile."""
        try:
            info: Any = await self._redis.xinfo_stream(stream)
        except ResponseError:  # there is no stream
            return after != FIRST
        return _numbers(info["last-generated-id"].decode()) < _numbers(after)

    async def _join(self, topic: str, group: str, start: str) -> None:
        try:
            await self._redis.xgroup_create(self._stream(topic), group, id=start, mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _read(self, topic: str, group: str, consumer: str, cursor: str) -> tuple[list[Any], str]:
        """The next entries: first those delivered to this consumer before and not acked, then those of the dead,
        then new ones. `cursor` is where in the first list to go on, ">" behind its end."""
        stream = self._stream(topic)
        if cursor != ">":
            answer = await self._redis.xreadgroup(group, consumer, {stream: cursor}, count=READ_COUNT)
            pending = _entries(answer)
            return pending, (pending[-1][0].decode() if pending else ">")
        _, claimed, *_ = await self._redis.xautoclaim(stream, group, consumer, CLAIM_IDLE_MS, count=READ_COUNT)
        if claimed:
            return claimed, ">"
        answer = await self._redis.xreadgroup(group, consumer, {stream: ">"}, count=READ_COUNT, block=READ_BLOCK_MS)
        return _entries(answer), ">"


async def _away(topic: str, error: Exception) -> None:
    log.warning("bus_unavailable", topic=topic, error=str(error))
    await asyncio.sleep(RETRY_SECONDS)


def _as_it_is(answer: Any, **_: Any) -> Any:
    return answer


def _numbers(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence)


def _fields(key: str, value: bytes) -> dict[Any, Any]:
    return {b"key": key.encode(), b"value": value}


def _message(topic: str, entry: Any) -> Message:
    """Raises ValueError for an entry that is none."""
    entry_id, fields = entry
    if fields[::2] != FIELDS:
        raise ValueError("an entry without a key and a value")
    _, key, _, value = fields
    return Message(topic, key.decode(), value, entry_id.decode())


def _entries(answer: Any) -> list[Any]:
    """Entries of one stream out of XREAD's answer, which is a list or (RESP3) a map."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return cast("list[Any]", next(iter(answer.values())))
    return cast("list[Any]", answer[0][1])
