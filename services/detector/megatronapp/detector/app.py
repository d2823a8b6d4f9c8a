"""The service: bus in, findings and metrics out. All judgement is in the engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry

from megatronapp.core.bus import Bus, Topic
from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import Finding
from megatronapp.core.logging import get_logger
from megatronapp.detector.backlog import Backlog
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import findings_pb2, trace_pb2

log = get_logger(__name__)

NS = 1e-9
RETRY_SECONDS = 0.5


class Detector:
    """Judges every job whose steps are on the bus.

    It keeps no files. What it knows it has learnt from the messages, so each start reads all that the bus still keeps.
    What it says of them is told only where it is new (backlog.py).
    """

    def __init__(self, settings: DetectorSettings, bus: Bus, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._bus = bus
        self._engines = Engines(settings.start_patience_seconds)
        self._exposition = Exposition(registry, self._engines, settings.top_ranks)
        self._heard: dict[str, float] = {}
        """When each run was heard of last, of the monotonic clock."""
        self._backlog: Backlog | None = None
        """While what was kept is read."""
        self._started_unix_ns = 0
        self._outbox: deque[Finding] = deque()
        self._telling = asyncio.Lock()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to read. Nothing listens here but the health server."""
        self.tasks = [asyncio.create_task(self._read(), name="steps"), asyncio.create_task(self._tick(), name="tick")]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        with contextlib.suppress(UnavailableError):
            await self._publish()

    def ready(self) -> bool:
        return bool(self.tasks) and not any(task.done() for task in self.tasks)

    async def _read(self) -> None:
        newest = await self._begin()
        async for messages in self._bus.follow(Topic.STEPS):
            for message in messages:
                arrived_unix_ns = self._take(message.value)
                if self._backlog and (message.id == newest or arrived_unix_ns >= self._started_unix_ns):
                    self._settle(self._backlog)
                if self._outbox:
                    await self._publish()

    async def _begin(self) -> str:
        """Learn what was told before, and ask who is there: of large jobs the bus does not keep the Hellos for long.
        Returns the id of the newest message that waits to be read, empty: none."""
        while True:
            try:
                newest, told = await self._bus.newest(Topic.STEPS), await self._told()
                await self._bus.publish(Topic.ROLL_CALL, "", b"")
            except UnavailableError as error:
                log.warning("bus_unavailable", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._started_unix_ns = time.time_ns()
            self._backlog, self._exposition.quiet = Backlog(told), True
            if not newest:
                self._settle(self._backlog)
            return newest

    async def _told(self) -> list[Finding]:
        """All findings that the bus keeps."""
        told: list[Finding] = []
        asked_unix_ns = time.time_ns()
        if not (newest := await self._bus.newest(Topic.FINDINGS)):
            return told
        async for messages in self._bus.follow(Topic.FINDINGS):
            found = [finding for message in messages if (finding := _finding(message.value))]
            told += found
            # A later one is enough: the newest may have been trimmed away meanwhile.
            later = any(finding.updated_unix_ns >= asked_unix_ns for finding in found)
            if later or newest in {message.id for message in messages}:
                break
        return told

    def _take(self, value: bytes) -> int:
        """Judge one message; returns when it arrived, 0 if it can't be read."""
        try:
            message = trace_pb2.RankMessage.FromString(value)
        except DecodeError:
            log.warning("message_unreadable", bytes=len(value))
            return 0
        run, arrived_unix_ns = message.identity.run, message.received_unix_ns
        age_seconds = max(0.0, (self._started_unix_ns - arrived_unix_ns) * NS) if self._backlog else 0.0
        self._heard[run] = time.monotonic() - age_seconds
        self._note(self._engines.feed(message))
        if not self._backlog:
            self._exposition.observe(self._engines.running.get(run))
        return arrived_unix_ns

    def _settle(self, backlog: Backlog) -> None:
        """All that was kept has been read: from now on there is news."""
        self._backlog, self._exposition.quiet = None, False
        news = backlog.settle(self._engines.running, time.time_ns())
        heard_of = {finding.id for finding in news}
        for engine in self._engines.running.values():
            for finding in engine.ledger.open:
                if finding.id not in heard_of:
                    self._exposition.know(finding)
        self._note(news)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            if self._backlog:
                continue
            self._note(self._engines.tick(time.time_ns()))
            for engine in list(self._engines.running.values()):
                self._exposition.observe(engine)
            self._forget_ended()
            await self._publish()

    def _note(self, findings: list[Finding]) -> None:
        if self._backlog:
            self._backlog.note(findings)
            return
        for finding in findings:
            self._exposition.note(finding)
            log.info(
                "finding",
                job=finding.job,
                state=str(finding.state),
                kind=str(finding.kind),
                cause=str(finding.cause),
                ranks=list(finding.ranks),
                page=finding.page,
                summary=finding.summary,
            )
            self._outbox.append(finding)

    async def _publish(self) -> None:
        """Tell what has not been told; it stays in line while the bus does not answer. Both tasks come here: one at a
        time, or each would take the other's finding out of the line."""
        async with self._telling:
            while self._outbox:
                finding = self._outbox[0]
                try:
                    await self._bus.publish(Topic.FINDINGS, finding.run, finding.to_proto().SerializeToString())
                except UnavailableError as error:
                    log.warning("finding_not_published", error=str(error), waiting=len(self._outbox))
                    return
                self._outbox.popleft()

    def _forget_ended(self) -> None:
        now = time.monotonic()
        for run, engine in list(self._engines.running.items()):
            ended, settings = engine.progress.ended, self._settings
            patience = settings.keep_ended_seconds if ended else settings.keep_silent_seconds
            if now - self._heard.get(run, now) > patience:
                self._note(self._engines.forget(run, time.time_ns()))
                self._exposition.forget(engine)
                self._heard.pop(run, None)


def _finding(value: bytes) -> Finding | None:
    try:
        return Finding.from_proto(findings_pb2.Finding.FromString(value))
    except (DecodeError, ValueError):
        log.warning("finding_unreadable", bytes=len(value))
        return None
