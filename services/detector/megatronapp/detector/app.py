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
from megatronapp.detector.engine import Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

NS = 1e-9
RETRY_SECONDS = 0.5


class Detector:
    """Judges every job whose steps are on the bus.

    It keeps no files. What it knows it has learnt from the messages, so each start reads all that the bus still keeps,
    and comes to the same findings with the same ids.
    """

    def __init__(self, settings: DetectorSettings, bus: Bus, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._bus = bus
        self._engines = Engines()
        self._exposition = Exposition(registry, self._engines, settings.top_ranks)
        self._heard: dict[str, float] = {}
        self._ended: dict[str, float] = {}
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
        await self._call_the_roll()
        async for messages in self._bus.follow(Topic.STEPS):
            for message in messages:
                self._take(message.value)
                if self._outbox:
                    await self._publish()

    async def _call_the_roll(self) -> None:
        """Ask who is there: of large jobs the bus does not keep the Hellos for long."""
        while True:
            try:
                return await self._bus.publish(Topic.ROLL_CALL, "", b"")
            except UnavailableError as error:
                log.warning("bus_unavailable", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _take(self, value: bytes) -> None:
        try:
            message = trace_pb2.RankMessage.FromString(value)
        except DecodeError:
            log.warning("message_unreadable", bytes=len(value))
            return
        run = message.identity.run
        self._heard[run] = time.monotonic()
        self._note(self._engines.feed(message))
        self._exposition.observe(self._engines.running.get(run))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self._note(self._engines.tick(time.time_ns()))
            for engine in list(self._engines.running.values()):
                self._exposition.observe(engine)
            self._forget_ended()
            await self._publish()

    def _note(self, findings: list[Finding]) -> None:
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
            if not engine.progress.ended:
                self._ended.pop(run, None)
            elif run not in self._ended:
                self._ended[run] = now
            ended = now - self._ended.get(run, now) > self._settings.keep_ended_seconds
            if ended or now - self._heard.get(run, now) > self._settings.keep_silent_seconds:
                self._note(self._engines.forget(run, time.time_ns()))
                self._exposition.forget(engine)
                self._heard.pop(run, None)
                self._ended.pop(run, None)
