"""A viewer's session on its way into a file: what the gateway sends to the viewer, as it is sent.

Nobody waits for the disk: entries wait in memory, a thread writes them, and a recording whose disk is too slow ends,
rather than to have holes that nobody sees.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from google.protobuf import json_format

from megatronapp.core.logging import get_logger
from megatronapp.gateway.scope.recordings.format import ENTRY_BYTES, MAX_ENTRIES, Header, Kind, packed_entry
from megatronapp.gateway.scope.recordings.store import Draft
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

MAX_WAITING_BYTES = 64 << 20
REPORT_SECONDS = 1.0
_TEXTS = ('{"description":', '{"subscribed":', '{"event":', '{"stall":')
"""How texts begin that are kept, as MessageToJson writes them: nothing is parsed again on the way out."""

Report = Callable[[scope_pb2.ScopeRecording], None]


class Recorder:
    """Of one event loop. `report` hears how it goes on."""

    def __init__(self, draft: Draft, header: Header, command: str, limits: tuple[int, float], report: Report) -> None:
        """limits: bytes and seconds."""
        self._draft = draft
        self._header = header
        self._command = command
        self._max_bytes, self._max_seconds = limits
        self._report = report
        self._began = math.inf
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._bytes = 0
        self._frames = self._events = 0
        self._last_us = 0
        self._limit = ""
        self._changed = asyncio.Event()
        self._ended = False
        self._task = asyncio.create_task(self._write(), name="scope recording")

    @property
    def id(self) -> str:
        return self._draft.id

    @property
    def ended(self) -> bool:
        return self._ended

    def begin(self, asked: Iterable[scope_pb2.ScopeSubscribe], sent: Iterable[str | bytes]) -> None:
        """What the viewer sees already: all of it is there when the recording begins."""
        for subscribe in asked:
            self.asked(subscribe)
        for data in sent:
            self.take(data)
        self._began = time.monotonic()

    def asked(self, subscribe: scope_pb2.ScopeSubscribe) -> None:
        self._add(Kind.ASKED, json_format.MessageToJson(subscribe, indent=None).encode())

    def take(self, data: str | bytes) -> None:
        """What is sent to the viewer."""
        if isinstance(data, bytes):
            self._frames += self._add(Kind.FRAME, data)
        elif data.startswith(_TEXTS):
            self._events += self._add(Kind.TEXT, data.encode()) and data.startswith('{"event":')

    async def finish(self) -> None:
        """Until the file is complete."""
        self._end("")
        await self._task

    def _end(self, limit: str) -> None:
        if not self._ended:
            self._ended, self._limit = True, limit
        self._changed.set()

    def _add(self, kind: Kind, content: bytes) -> bool:
        if self._ended:
            return False
        elapsed = self._elapsed()
        reached = self._reached(len(content), elapsed)
        if reached:
            self._end(reached)
            return False
        self._last_us = int(elapsed * 1e6)
        entry = packed_entry(kind, self._last_us, content)
        self._waiting.append(entry)
        self._waiting_bytes += len(entry)
        self._bytes += len(entry)
        self._changed.set()
        return True

    def _reached(self, size: int, elapsed: float) -> str:
        if self._bytes + size + ENTRY_BYTES > self._max_bytes or self._frames + self._events >= MAX_ENTRIES // 2:
            return "bytes"
        if elapsed > self._max_seconds:
            return "seconds"
        return "slow" if self._waiting_bytes + size > MAX_WAITING_BYTES else ""

    async def _write(self) -> None:
        reported = 0.0
        try:
            while not (self._ended and not self._waiting):
                self._changed.clear()
                chunk, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
                if chunk:
                    await asyncio.to_thread(self._draft.write, chunk)
                if time.monotonic() - reported >= REPORT_SECONDS and not self._ended:
                    reported = time.monotonic()
                    self._report(self._state("recording"))
                if not self._waiting and not self._ended:
                    await self._wait()
            await asyncio.to_thread(self._draft.finish, self._summary())
        except OSError as error:
            log.warning("scope_recording_failed", recording=self.id, error=str(error))
            self._end("disk")
            self._limit = "disk"
            await asyncio.to_thread(self._draft.discard)
        self._report(self._state("finished"))

    async def _wait(self) -> None:
        """Until there is more, or it is time to report, or to end."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            if self._elapsed() > self._max_seconds:
                self._end("seconds")

    def _elapsed(self) -> float:
        return 0.0 if self._header.snapshot else max(time.monotonic() - self._began, 0.0)

    def _summary(self) -> Header:
        changed = {"seconds": self._last_us / 1e6, "frames": self._frames, "events": self._events}
        return self._header.model_copy(update=changed)

    def _state(self, state: str) -> scope_pb2.ScopeRecording:
        seconds = self._last_us / 1e6 if self._ended else self._elapsed()
        return scope_pb2.ScopeRecording(
            id=self.id, command=self._command, state=state, bytes=self._bytes, seconds=seconds, limit=self._limit
        )
