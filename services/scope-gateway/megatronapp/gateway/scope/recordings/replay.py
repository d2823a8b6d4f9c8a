"""A recording to one viewer, over the same protocol: its clock, what is due, and what was shown when.

A jump back begins anew: another epoch, upon which the viewer asks for everything again, and is told all up to there.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import BinaryIO

from megatronapp.core.errors import DataError
from megatronapp.gateway.scope.events import as_text
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.recordings.format import Asked, Entry, Index, Kind, asked_of, parsed
from megatronapp.gateway.scope.recordings.store import read_entries
from megatronapp.gateway.scope.slots import MAX_WAITING_BYTES
from megatronapp.gateway.scope.viewers import Viewer
from megatronapp.v1 import scope_pb2

Server = scope_pb2.ScopeServerMessage
Send = Callable[[str], Awaitable[None]]

DEFAULT_CREDITS = 2
MAX_SPEED = 64.0
MOST_AT_ONCE = 256
"""Entries that are read together."""


class Replay:
    """Of one viewer, for one event loop. `file` is the recording's, and its own."""

    def __init__(self, viewer: Viewer, index: Index, file: BinaryIO, max_subscriptions: int) -> None:
        self._viewer = viewer
        self._index = index
        self._file = file
        self._reading = asyncio.Lock()
        self._max_subscriptions = max_subscriptions
        self._subscriptions: dict[int, Asked] = {}
        self._asked: list[scope_pb2.ScopeSubscribe] = []
        """Whose pictures of before are still to come."""
        self._cursor = 0
        self._restart = True
        self._from_us = 0
        """Where it was at `_at`."""
        self._at = time.monotonic()
        self._speed = 1.0
        self._playing = True
        self._changed = asyncio.Event()

    def close(self) -> None:
        self._file.close()

    # What the viewer says

    def subscribe(self, asked: scope_pb2.ScopeSubscribe) -> None:
        """Raises RefusedError for what was not recorded."""
        if asked.id < 1:
            raise RefusedError("invalid", "a subscription's id counts from 1")
        if asked.id not in self._subscriptions and len(self._subscriptions) >= self._max_subscriptions:
            raise RefusedError("too_many", f"{len(self._subscriptions)} subscriptions are the most of one viewer")
        try:
            wanted = asked_of(asked)
        except DataError as error:
            raise RefusedError("syntax", str(error)) from error
        if wanted not in self._index.subscriptions:
            raise RefusedError("not_recorded", f"{wanted.expression} was not recorded", self._recorded())
        self._asked.append(asked)
        self._changed.set()

    def unsubscribe(self, number: int) -> None:
        self._asked = [one for one in self._asked if one.id != number]
        self._subscriptions.pop(number, None)
        self._viewer.slots.close(number)

    def control(self, message: scope_pb2.ScopeReplayControl) -> None:
        """Raises RefusedError."""
        match message.do:
            case "play":
                if message.speed and not 0 < message.speed <= MAX_SPEED:
                    raise RefusedError("invalid", f"a speed is above 0, at most {MAX_SPEED:g}")
                ended = self._now_us() >= self._end_us
                self._go(0 if ended else self._now_us(), playing=True, speed=message.speed or self._speed)
            case "pause":
                self._go(self._now_us(), playing=False, speed=self._speed)
            case "seek":
                if not message.seconds >= 0:
                    raise RefusedError("invalid", "a recording begins at 0 seconds")
                to_us = int(min(message.seconds * 1e6, self._end_us))
                self._go(to_us, playing=self._playing, speed=self._speed)
            case _:
                raise RefusedError("invalid", "a replay is told to play, pause or seek")

    # What the viewer gets

    async def run(self, send: Send) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            if self._restart:
                await self._begin(send)
            now_us = self._now_us()
            due = self._due(now_us)
            await self._show(due, send)
            await self._answer(send)
            if self._playing and now_us >= self._end_us:
                self._playing, self._from_us = False, self._end_us
                await send(as_text(Server(replay=self._state())))
            if not due and not self._changed.is_set():
                await self._wait(now_us)

    async def _begin(self, send: Send) -> None:
        self._restart, self._cursor = False, 0
        for number in self._subscriptions:
            self._viewer.slots.close(number)
        self._subscriptions.clear()
        welcome = scope_pb2.ScopeWelcome(
            viewer=self._viewer.id, epoch=secrets.token_hex(8), server_unix_seconds=time.time(), role="viewer"
        )
        await send(as_text(Server(welcome=welcome)))
        await send(as_text(Server(replay=self._state())))

    def _due(self, now_us: int) -> list[Entry]:
        entries, begin = self._index.entries, self._cursor
        while (
            self._cursor < len(entries)
            and self._cursor - begin < MOST_AT_ONCE
            and entries[self._cursor].at_us <= now_us
        ):
            self._cursor += 1
        return entries[begin : self._cursor]

    async def _show(self, due: Iterable[Entry], send: Send) -> None:
        """Texts in their order; of frames what is not replaced by one of the same time."""
        by_asked: dict[Asked, list[int]] = {}
        for number, asked in self._subscriptions.items():
            by_asked.setdefault(asked, []).append(number)
        texts = [entry for entry in due if entry.kind is Kind.TEXT and entry.asked is None]
        frames = _newest(entry for entry in due if entry.kind is Kind.FRAME and entry.asked in by_asked)
        for content in await self._read(texts):
            await send(_replayed(content))
        for entry, content in zip(frames, await self._read(frames), strict=True):
            for number in by_asked[entry.asked] if entry.asked else ():
                self._viewer.slots.offer(number, entry.replaces, content, throttled=False)

    async def _answer(self, send: Send) -> None:
        """New subscriptions: the answer of then, and what was shown up to now."""
        while self._asked:
            asked = self._asked.pop(0)
            wanted = asked_of(asked)
            before = [entry for entry in self._index.entries[: self._cursor] if entry.asked == wanted]
            answer = next((one for one in self._index.entries if one.asked == wanted and one.kind is Kind.TEXT), None)
            if answer is not None:
                message = parsed((await self._read([answer]))[0], Server())
                message.subscribed.id = asked.id
                await send(as_text(message))
            frames = _latest(entry for entry in before if entry.kind is Kind.FRAME)
            self._subscriptions[asked.id] = wanted
            self._viewer.slots.open(asked.id, asked.credits or DEFAULT_CREDITS, 0.0)
            for entry, content in zip(frames, await self._read(frames), strict=True):
                self._viewer.slots.offer(asked.id, entry.replaces, content, throttled=False)

    async def _read(self, entries: list[Entry]) -> list[bytes]:
        if not entries:
            return []
        async with self._reading:
            places = [(entry.offset, entry.size) for entry in entries]
            return await asyncio.to_thread(read_entries, self._file, places)

    async def _wait(self, now_us: int) -> None:
        """Until the next entry is due, or something is said."""
        seconds: float | None = None
        if self._playing:
            entries = self._index.entries
            next_us = entries[self._cursor].at_us if self._cursor < len(entries) else self._end_us
            seconds = max(next_us - now_us, 0) / 1e6 / self._speed
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    # Its clock

    @property
    def _end_us(self) -> int:
        return self._index.entries[-1].at_us if self._index.entries else 0

    def _now_us(self) -> int:
        passed = (time.monotonic() - self._at) * 1e6 * self._speed if self._playing else 0
        return min(self._from_us + int(passed), self._end_us)

    def _go(self, to_us: int, *, playing: bool, speed: float) -> None:
        shown = self._index.entries[self._cursor - 1].at_us if self._cursor else 0
        self._restart |= to_us < shown
        self._from_us, self._at, self._playing, self._speed = to_us, time.monotonic(), playing, speed
        self._viewer.send(Server(replay=self._state()))
        self._changed.set()

    def _state(self) -> scope_pb2.ScopeReplayState:
        header = self._index.header
        return scope_pb2.ScopeReplayState(
            seconds=self._now_us() / 1e6,
            duration_seconds=self._end_us / 1e6,
            playing=self._playing,
            speed=self._speed,
            subscriptions=self._index.subscriptions.values(),
            name=header.name,
            recorded_unix_seconds=header.recorded_unix_seconds,
        )

    def _recorded(self) -> str:
        names = list(dict.fromkeys(asked.expression for asked in self._index.subscriptions))
        return f"it has {'; '.join(names[:6])}" if names else "nothing was looked at in it"


def _replayed(content: bytes) -> str:
    """Nobody controls what is over."""
    message = parsed(content, Server())
    if message.HasField("description"):
        message.description.replay = True
        message.description.controller = ""
    return as_text(message)


def _newest(frames: Iterable[Entry]) -> list[Entry]:
    kept: dict[Hashable, Entry] = {}
    for entry in frames:
        kept.pop((entry.asked, entry.replaces), None)
        kept[entry.asked, entry.replaces] = entry
    return list(kept.values())


def _latest(frames: Iterable[Entry]) -> list[Entry]:
    """The newest of what a viewer who was there would have, as much of it as may wait."""
    kept: list[Entry] = []
    size = 0
    for entry in reversed(_newest(frames)):
        size += entry.size
        if kept and size > MAX_WAITING_BYTES:
            break
        kept.append(entry)
    return kept[::-1]
