"""Events of a run, lossless: each has an offset, the newest are kept, and who was away continues where he was.

The pair (epoch, offset) is Centrifugo's: an epoch is one history. Another epoch, or an offset that is not kept any
more, is a gap, which the viewer is told of.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf import json_format

from megatronapp.v1 import scope_pb2

MAX_RING_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Who said an event: a rank, in one of its incarnations. `number`: its own one; 0: it does not send it again."""

    rank: int
    incarnation: int = 0
    number: int = 0


def as_text(message: scope_pb2.ScopeServerMessage) -> str:
    return json_format.MessageToJson(message, indent=None)


class Ring:
    """For one event loop. The newest `size` events, and no more than `max_bytes` of them, are kept."""

    def __init__(self, size: int, max_bytes: int = MAX_RING_BYTES) -> None:
        self._size = size
        self._max_bytes = max_bytes
        self._bytes = 0
        self.epoch = secrets.token_hex(8)
        self.offset = 0
        """Of the newest event that is shown; 0: none yet."""
        self._last = 0
        """Of the newest that has a number."""
        self._texts: deque[str] = deque()
        self._received: dict[int, Source] = {}
        """By rank, of its newest event that has a number."""
        self._changed = asyncio.Event()

    def append(self, event: scope_pb2.ScopeEvent, source: Source | None = None) -> None:
        self.show([self.numbered(event, source)])

    def numbered(self, event: scope_pb2.ScopeEvent, source: Source | None = None) -> str:
        """Its text, to be shown in the order in which they were numbered."""
        self._last += 1
        numbered = scope_pb2.ScopeNumberedEvent(offset=self._last, event=event)
        if source is not None:
            numbered.rank = source.rank
            numbered.event_number, numbered.incarnation = source.number, source.incarnation if source.number else 0
            self._receive(source)
        return as_text(scope_pb2.ScopeServerMessage(event=numbered))

    def received(self, rank: int, incarnation: int) -> int:
        """Number of the newest event of this incarnation of a rank; 0: none."""
        newest = self._received.get(rank)
        return newest.number if newest is not None and newest.incarnation == incarnation else 0

    def _receive(self, source: Source) -> None:
        if source.number:
            self._received[source.rank] = source

    def show(self, texts: Sequence[str]) -> None:
        self.offset += len(texts)
        self._texts.extend(texts)
        self._bytes += sum(map(len, texts))
        while len(self._texts) > self._size or (self._bytes > self._max_bytes and len(self._texts) > 1):
            self._bytes -= len(self._texts.popleft())
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def begin_epoch(self) -> None:
        """Who comes back with the one before is told that something may be missing."""
        self.epoch = secrets.token_hex(8)

    def restore(self, epoch: str, texts: Sequence[str]) -> None:
        """Go on where another ring has stopped."""
        self.epoch = epoch
        self._last = json_format.Parse(texts[-1], scope_pb2.ScopeServerMessage()).event.offset
        self.offset = self._last - len(texts)
        for text in texts:
            event = json.loads(text)["event"]
            incarnation, number = int(event.get("incarnation", 0)), int(event.get("eventNumber", 0))
            self._receive(Source(event.get("rank", 0), incarnation, number))
        self.show(texts)

    def keeps(self, epoch: str, offset: int) -> bool:
        """Whether all after this is there."""
        return epoch == self.epoch and self.oldest <= offset <= self.offset

    def kept(self) -> list[str]:
        """All texts that are there."""
        return list(self._texts)

    @property
    def oldest(self) -> int:
        """The offset before the oldest that is there."""
        return self.offset - len(self._texts)

    def after(self, offset: int) -> list[str]:
        """All texts after an offset that is kept."""
        count = self.offset - offset
        return list(self._texts)[len(self._texts) - count :] if count else []

    async def wait(self, offset: int) -> None:
        """Until there is something after it."""
        while self.offset <= offset:
            await self._changed.wait()
