"""Bus and collector → state → viewers: the one way that data takes through the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from megatronapp.core.bus import Bus, Message, Topic
from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.core.findings import Finding
from megatronapp.core.logging import get_logger
from megatronapp.gateway import views
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.models import FindingEvent, Job, JobEvent, JobGoneEvent, JobState, StepEvent
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.state import Change, Platform
from megatronapp.gateway.viewers import Viewers
from megatronapp.v1 import findings_pb2, trace_pb2

log = get_logger(__name__)

FLUSH_SECONDS = 0.25
"""Changes of jobs and steps are sent together so often: each rank of a job speaks at least once a second."""
RECORDS_RETRY_SECONDS = 5.0
ENDED = {JobState.FINISHED, JobState.LOST}


class Feed:
    """Keeps the platform's state up to date and tells viewers what changed.

    Each process follows the bus from the oldest message kept: so that every replica sees everything, and knows findings
    and jobs again after a restart.
    """

    def __init__(
        self,
        bus: Bus,
        platform: Platform,
        viewers: Viewers,
        collector: CollectorShards,
        metrics: GatewayMetrics,
        ended_job_seconds: float,
    ) -> None:
        self._bus = bus
        self._platform = platform
        self._viewers = viewers
        self._collector = collector
        self._metrics = metrics
        self._ended_job_ns = int(ended_job_seconds * 1e9)
        self._changed: dict[Change, None] = {}
        self._sent: dict[str, Job] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(Topic.STEPS, self._take_step))
            tasks.create_task(self._read(Topic.FINDINGS, self._take_finding))
            tasks.create_task(self._read(Topic.TRACE_CONTROL, self._take_control))
            tasks.create_task(self._read_records())
            tasks.create_task(self._flush_for_ever())

    async def _read(self, topic: Topic, take: Callable[[Message], None]) -> None:
        async for messages in self._bus.follow(topic):
            for message in messages:
                self._metrics.messages.labels(topic).inc()
                try:
                    take(message)
                except (DecodeError, DataError, ValueError) as error:
                    self._metrics.bad_messages.labels(topic).inc()
                    log.warning("message_not_understood", topic=topic, key=message.key, error=str(error))

    def _take_step(self, message: Message) -> None:
        change = self._platform.apply_message(trace_pb2.RankMessage.FromString(message.value))
        if change is not None:
            self._changed[change] = None

    def _take_finding(self, message: Message) -> None:
        finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
        if self._platform.apply_finding(finding):
            self._viewers.publish(FindingEvent(finding=finding))
            self._changed[Change(finding.run)] = None

    def _take_control(self, message: Message) -> None:
        control = trace_pb2.TraceControl.FromString(message.value)
        self._changed[self._platform.apply_control(message.key, control)] = None

    async def _read_records(self) -> None:
        """Learn once, as soon as the collector answers, of jobs that the bus no longer tells of."""
        await _until_possible(self._apply_records, RECORDS_RETRY_SECONDS)

    async def _apply_records(self) -> None:
        """Fold in the newest attempt of each run."""
        records = sorted(await self._collector.jobs(), key=lambda record: record.attempt)
        for record in {record.run: record for record in records}.values():
            ranks = await self._collector.ranks(record.run)
            self._changed[self._platform.apply_record(record, ranks)] = None

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._flush(time.time_ns())

    def _flush(self, now_ns: int) -> None:
        """Send what changed; a live job may also change by silence alone."""
        changes, self._changed = self._changed, {}
        for change in changes:
            job = self._platform.jobs.get(change.run)
            if job is not None and change.step in job.steps:
                self._viewers.publish(StepEvent(run=job.run, row=views.step_row(job.steps[change.step])))
        live = {run for run in self._platform.jobs if run not in self._sent or self._sent[run].state not in ENDED}
        for view in views.job_views(self._platform, now_ns, live | {change.run for change in changes}):
            if view != self._sent.get(view.run):
                self._sent[view.run] = view
                self._viewers.publish(JobEvent(job=view))
        self._forget_ended(now_ns)
        self._metrics.jobs.set(len(self._platform.jobs))
        self._metrics.viewers.set(len(self._viewers))

    def _forget_ended(self, now_ns: int) -> None:
        """Drop what ended long ago, and old findings of jobs that nobody knows any more."""
        jobs, oldest_ns = self._platform.jobs, now_ns - self._ended_job_ns
        ended = {
            view.run
            for view in self._sent.values()
            if view.run not in jobs or (view.state in ENDED and view.updated_unix_seconds * 1e9 < oldest_ns)
        }
        findings = self._platform.findings.values()
        orphans = {f.run for f in findings if f.run not in jobs and f.updated_unix_ns < oldest_ns}
        for run in ended | orphans:
            self._platform.forget(run)
            self._sent.pop(run, None)
            self._viewers.publish(JobGoneEvent(run=run))


async def _until_possible(action: Callable[[], Awaitable[None]], retry_seconds: float = 1.0) -> None:
    """Try until it works: bus and collector may be away for a while."""
    while True:
        try:
            return await action()
        except MegatronAppError as error:
            log.info("trying_again", error=str(error), seconds=retry_seconds)
            await asyncio.sleep(retry_seconds)
