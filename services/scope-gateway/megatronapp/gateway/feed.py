"""Bus and collector → state → viewers: the one way that data takes through the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from megatronapp.core.bus import Bus, Message, Topic
from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, UnavailableError
from megatronapp.core.findings import Finding
from megatronapp.core.findings_store import Annotation, FindingsStore
from megatronapp.core.findings_store.annotations import decode_annotation
from megatronapp.core.findings_store.codec import decode
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine
from megatronapp.core.trace.limits import MAX_STEP
from megatronapp.core.trace.validate import check_control, check_identity, check_rank_message
from megatronapp.gateway import events, views
from megatronapp.gateway.live import Hub
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.models import ENDED, AnnotationEvent, FindingEvent, Job, JobEvent, JobGoneEvent, StepEvent
from megatronapp.gateway.phases import OVER, decode_phases
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.state import Change, JobStore
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

FLUSH_SECONDS = 0.25
"""Changes of jobs and steps are sent together so often: each rank of a job speaks at least once a second."""
RECORDS_RETRY_SECONDS = 5.0
RELEASED_SECONDS = 5.0
"""How often records that a person has handed back are looked for."""


class Feed:
    """Keeps the platform's state up to date and tells viewers what changed.

    Each process follows the bus from the oldest message kept, and reads the store of findings at its start: so that
    every replica sees everything, and knows findings and jobs again after a restart. A record, or a job, that fails
    concerns no other.
    """

    def __init__(
        self,
        bus: Bus,
        job_store: JobStore,
        hub: Hub,
        findings: FindingsStore,
        collector: CollectorShards,
        metrics: GatewayMetrics,
        quarantine: Quarantine,
        ended_job_seconds: float,
    ) -> None:
        self._bus = bus
        self._job_store = job_store
        self._hub = hub
        self._findings = findings
        self._collector = collector
        self._records_read = False
        self._metrics = metrics
        self._quarantine = quarantine
        self._ended_job_ns = int(ended_job_seconds * 1e9)
        self._changed: dict[Change, None] = {}
        self._sent: dict[str, Job] = {}
        self.flushed = time.monotonic()
        """When changes were looked at last, of the monotonic clock."""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(Topic.STEPS, self._take_step))
            tasks.create_task(self._read(Topic.FINDINGS, self._take_finding))
            tasks.create_task(self._read(Topic.ANNOTATIONS, self._take_annotation))
            tasks.create_task(self._read(Topic.TRACE_CONTROL, self._take_control))
            tasks.create_task(self._read(Topic.PHASES, self._take_phases))
            tasks.create_task(self._read_records())
            tasks.create_task(_until_possible(self._apply_findings))
            tasks.create_task(self._flush_for_ever())
            tasks.create_task(self._take_released())

    async def _read(self, topic: Topic, take: Callable[[Message], None]) -> None:
        async for messages in self._bus.follow(topic):
            for message in messages:
                self._metrics.messages.labels(topic).inc()
                try:
                    take(message)
                except Exception as error:  # noqa: BLE001  one message must not end the reading of all others
                    self._metrics.bad_messages.labels(topic).inc()
                    log.warning("message_not_understood", topic=topic, key=message.key, error=str(error))

    def _take_step(self, message: Message) -> None:
        self._take_record(message.value)

    def _take_record(self, record: bytes) -> None:
        """What a rank said. A record that makes trouble is set aside."""
        message = trace_pb2.RankMessage()
        try:
            message.ParseFromString(record)
            check_rank_message(message)
            change = self._job_store.apply_message(message)
        except Exception as error:
            who, reason = message.identity, f"{type(error).__name__}: {error}"
            self._quarantine.put(record, run=who.run, job=who.job, attempt=who.attempt, rank=who.rank, reason=reason)
            raise
        if change is not None:
            self._changed[change] = None

    async def _take_released(self) -> None:
        """Take in, as if they came now, records that were set aside and that a person has handed back."""
        while True:
            await asyncio.sleep(RELEASED_SECONDS)
            for released in await asyncio.to_thread(self._quarantine.take_released):
                with contextlib.suppress(Exception):
                    self._take_record(released.record)
                released.done()

    def _take_finding(self, message: Message) -> None:
        self._apply_finding(decode(message.value))

    async def _apply_findings(self) -> None:
        """What was found before this start."""
        for finding in await self._findings.find():
            try:
                self._apply_finding(finding)
            except Exception:
                log.exception("finding_not_understood", id=finding.id)
        for annotation in await self._findings.annotations(list(self._job_store.findings)):
            self._apply_annotation(annotation)

    def _take_annotation(self, message: Message) -> None:
        self._apply_annotation(decode_annotation(message.value))

    def _apply_annotation(self, annotation: Annotation) -> None:
        if self._job_store.apply_annotation(annotation):
            events.publish(self._hub, AnnotationEvent(annotation=annotation))

    def _apply_finding(self, finding: Finding) -> None:
        if self._job_store.apply_finding(finding):
            events.publish(self._hub, FindingEvent(finding=finding))
            self._changed[Change(finding.run)] = None

    def _take_control(self, message: Message) -> None:
        control = trace_pb2.TraceControl.FromString(message.value)
        check_control(control)
        self._changed[self._job_store.apply_control(message.key, control)] = None

    def _take_phases(self, message: Message) -> None:
        oldest_ns = time.time_ns() - self._ended_job_ns
        for each in decode_phases(message.value):
            reported = each.reported
            ended = reported is not None and reported.phase in OVER and reported.since_unix_ns < oldest_ns
            if ended and each.run not in self._job_store.jobs:
                continue  # too long ago to be listed
            change = self._job_store.apply_phase(each.run, each.job, reported)
            if change is not None:
                self._changed[change] = None

    async def _read_records(self) -> None:
        """Learn once, as soon as the collector answers, of jobs that the bus no longer tells of."""
        await _until_possible(self._apply_records, RECORDS_RETRY_SECONDS)
        self._records_read = True

    async def _apply_records(self) -> None:
        """Fold in the newest attempt of each run that can be true, and that did not end too long ago to be listed."""
        records = sorted(filter(_plausible, await self._collector.jobs()), key=lambda record: record.attempt)
        oldest_ns = time.time_ns() - self._ended_job_ns
        for record in {record.run: record for record in records}.values():
            if record.last_seen_unix_ns < oldest_ns and not record.ranks_connected:
                continue
            try:
                ranks = await self._collector.ranks(record.run)
                self._changed[self._job_store.apply_record(record, ranks)] = None
            except NotFoundError:
                continue  # deleted meanwhile
            except UnavailableError:
                raise
            except Exception:
                log.exception("record_not_understood", job=record.job, run=record.run)

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.flushed = time.monotonic()
            try:
                self._flush(time.time_ns())
            except Exception:
                log.exception("changes_not_sent")

    def _flush(self, now_ns: int) -> None:
        """Send what changed; a live job may also change by silence alone."""
        changes, self._changed = self._changed, {}
        for change in changes:
            job = self._job_store.jobs.get(change.run)
            if job is not None and change.step in job.steps:
                events.publish(self._hub, StepEvent(run=job.run, row=views.step_row(job.steps[change.step])))
        live = {run for run in self._job_store.jobs if run not in self._sent or self._sent[run].state not in ENDED}
        for view in views.job_views(self._job_store, now_ns, live | {change.run for change in changes}):
            if view != self._sent.get(view.run):
                self._sent[view.run] = view
                events.publish(self._hub, JobEvent(job=view))
        self._forget_ended(now_ns)
        self._metrics.jobs.set(len(self._job_store.jobs))
        self._metrics.hidden_jobs.set(sum(job.hidden for job in self._job_store.jobs.values()))
        self._metrics.viewers.set(len(self._hub))

    def _forget_ended(self, now_ns: int) -> None:
        """Drop what ended long ago, and old findings of jobs that nobody knows any more, once these are known."""
        jobs, oldest_ns = self._job_store.jobs, now_ns - self._ended_job_ns
        ended = {
            view.run
            for view in self._sent.values()
            if view.run not in jobs or (view.state in ENDED and view.updated_unix_seconds * 1e9 < oldest_ns)
        }
        findings = self._job_store.findings.values()
        old = (f for f in findings if f.run not in jobs and f.updated_unix_ns < oldest_ns)
        orphans = {f.run for f in old if self._records_read}
        for run in ended | orphans:
            self._job_store.forget(run)
            self._sent.pop(run, None)
            events.publish(self._hub, JobGoneEvent(run=run))


def _plausible(record: trace_pb2.JobRecord) -> bool:
    """Whether a record can be true: a store may hold what an older version took in."""
    try:
        check_identity(trace_pb2.Identity(run=record.run, job=record.job, attempt=record.attempt))
    except DataError as error:
        log.warning("record_not_understood", job=record.job, run=record.run, error=str(error))
        return False
    return max(record.last_step, record.schedule.total_steps) <= MAX_STEP


async def _until_possible(action: Callable[[], Awaitable[None]], retry_seconds: float = 1.0) -> None:
    """Try until it works: bus and collector may be away for a while."""
    while True:
        try:
            return await action()
        except MegatronAppError as error:
            log.info("trying_again", error=str(error), seconds=retry_seconds)
            await asyncio.sleep(retry_seconds)
