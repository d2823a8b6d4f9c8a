"""The way of every message: journal (in groups), then state and bus, and from time to time the store.

Messages are applied in the journal's order (applier.py).

What goes wrong with one message or one job stays there: a record that can't be applied, and the rows of a job that
can't be stored, are set aside (core.quarantine) and count as stored; everything else goes on. Records that a person
hands back are applied again, and their files go when the store has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatronapp.collector import notes
from megatronapp.collector.applier import Applier
from megatronapp.collector.condition import Condition
from megatronapp.collector.job_limit import JobLimit
from megatronapp.collector.jobs import Attempt, Jobs
from megatronapp.collector.journal import Journal
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.outbox import Outbox
from megatronapp.collector.received import Received, SenderKey, from_record
from megatronapp.collector.record_quarantine import RecordQuarantine
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Failed, Manifest, Store
from megatronapp.core.errors import ForbiddenError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine, Released
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

Done = Callable[[UnavailableError | None], None]
"""Told when a message is durable, or why it is not."""

PROBE_SECONDS = 0.5
RELEASED_SECONDS = 2.0
"""Between looks for records that were handed back."""
EXPIRE_SECONDS = 60.0
STORE_MEMORY_FACTOR = 8
"""Rows in memory may reach this many times flush_bytes while the store can't be written; then intake is refused."""


@dataclass(frozen=True, slots=True)
class _Pending:
    received: Received
    done: Done


class Pipeline:
    def __init__(
        self,
        settings: CollectorSettings,
        journal: Journal,
        store: Store,
        outbox: Outbox,
        jobs: Jobs,
        metrics: CollectorMetrics,
        quarantine: Quarantine,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._store = store
        self._outbox = outbox
        self._jobs = jobs
        self._metrics = metrics
        self._aside = RecordQuarantine(quarantine)
        self._applier = Applier(store.manifest, jobs, outbox, metrics)
        self._job_limit = JobLimit(settings.max_jobs, settings.max_jobs_per_namespace)
        self.controls = self._applier.controls
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._flush_now = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._committing = asyncio.Lock()
        self._closed = False
        self._applied = journal.position
        self._condition = Condition(metrics)

    def ready(self) -> bool:
        """Whether messages are taken now: the disk has room, nobody waits for the bus, and nothing is stuck."""
        return self._condition.good and self._room.is_set()

    def admit(self, identity: trace_pb2.Identity, *, may_open_run: bool) -> None:
        """Raises ForbiddenError when the run is another job's, or is nobody's yet and the rank may not open it, and
        TooManyJobsError when there is no room for it."""
        self._jobs.check_owner(identity)
        if not may_open_run and self._jobs.owner(identity.run) is None:
            raise ForbiddenError(
                f"the token does not name run {identity.run!r}, which is new: only pods that an earlier version "
                "started may go on with a run; start the job again"
            )
        self._job_limit.admit(identity.job, identity.run)

    def knows(self, identity: trace_pb2.Identity) -> bool:
        """Whether the rank's Hello has been taken in."""
        return self._jobs.knows(identity)

    def arrival_of_hello(self, identity: trace_pb2.Identity, unix_ns: int) -> int:
        """When a Hello that comes now has arrived."""
        return self._jobs.arrival_of_hello(identity, unix_ns)

    def replay(self) -> int:
        """Apply what the journal holds beyond the store and the bus; returns the number of records."""
        manifest = self._store.manifest
        count = 0
        for position, record in self._journal.replay(min(manifest.stored, manifest.published)):
            count += self._replay(position, record, manifest)
        self._applied = self._journal.position
        return count

    def _replay(self, position: int, record: bytes, manifest: Manifest) -> bool:
        with self._aside.unless_applied(record):
            received = from_record(record)
            if position >= manifest.stored:
                self._take(position, received, publish=position >= manifest.published)
            else:
                self._applier.publish(position, received)
            return True
        return False

    def seen(self, sender: SenderKey, seq: int) -> bool:
        """Whether the message has been applied before."""
        return self._applier.seen(sender, seq)

    async def submit(self, received: Received, done: Done) -> None:
        """Hand in a message; waits while too much is under way. `done` is called once, from the event loop.

        Raises UnavailableError when the store can't be written and memory is used up.
        """
        if not self._condition.store_ok and self.buffered_bytes > STORE_MEMORY_FACTOR * self._settings.flush_bytes:
            raise UnavailableError("the store can't be written and memory is used up; free some disk space")
        await self._room.wait()
        self._pending.append(_Pending(received, done))
        self._pending_bytes += received.size
        self._check_room()
        self._wake.set()

    async def store(self, received: Received) -> None:
        """Hand in a message and wait until it is durable. Raises UnavailableError when it can't be."""
        result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: UnavailableError | None) -> None:
            if not result.done():
                result.set_exception(error) if error else result.set_result(None)

        await self.submit(received, done)
        await result

    @property
    def applied(self) -> int:
        """Position in the journal up to which everything has been applied."""
        return self._applied

    @property
    def buffered_bytes(self) -> int:
        return sum(attempt.buffer.bytes + attempt.writing.bytes for attempt in self._jobs)

    async def run_journal(self) -> None:
        """Write groups until cancelled; what arrives during one write forms the next group."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            group, self._pending = self._pending, []
            if not group:
                continue
            async with self._committing:
                with self._condition.writing():
                    error = await self._commit(group)
            self._settle(sum(item.received.size for item in group))
            for item in group:
                item.done(error)

    async def run_store(self) -> None:
        """Write the store when enough has come or enough time has passed, until cancelled."""
        expired = 0.0
        while True:
            timeout = self._settings.flush_seconds if self._condition.store_ok else PROBE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._flush_now.wait(), timeout)
            self._flush_now.clear()
            try:
                await self.flush()
            except Exception as error:
                log.exception("store_failed")
                self._condition.store(f"{type(error).__name__}: {error}")
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                await self._expire()

    async def run_probe(self) -> None:
        """While the disk refuses the journal, or the bus is behind, look again, so that intake goes on by itself."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            self._condition.tick()
            self._check_room()
            if not self._condition.journal_ok:
                self._condition.journal(ok=await asyncio.to_thread(self._journal.probe))

    async def run_released(self) -> None:
        """Apply the records that a person hands back, until cancelled."""
        while True:
            await asyncio.sleep(RELEASED_SECONDS)
            try:
                for released in await asyncio.to_thread(self._aside.released):
                    self._apply_again(released)
            except Exception:
                log.exception("released_records_failed")

    async def flush(self) -> None:
        """Write everything in memory to the store and drop the journal that is no longer needed."""
        async with self._flushing:
            if not self._closed:
                await self._flush()

    async def close(self) -> None:
        """Write the store for the last time, after all streams have ended. What is under way is awaited, since a
        thread that writes can't be cancelled; nothing touches journal and store afterwards."""
        async with self._flushing, self._committing:
            try:
                await self._flush()
            finally:
                self._closed = True
                self._journal.close()

    async def _flush(self) -> None:
        position = self._applied
        oldest, again = self._outbox.oldest, self._aside.again()
        published = position if oldest is None else min(oldest, position)
        changed = [attempt for attempt in self._jobs if attempt.changed or attempt.buffer or attempt.writing]
        before = self._store.manifest
        if not changed and published == before.published:
            self._aside.stored(again, {}, oldest)  # the store had these before the bus did
            return
        for attempt in changed:
            attempt.begin_write()
        failed = await self._write(changed, self._applier.manifest(before.write + 1, position, published))
        if failed is None:
            return
        for attempt in changed:
            attempt.end_write()
        self._aside.stored(again, failed, oldest)
        await asyncio.to_thread(self._journal.trim, min(position, published))

    async def _write(self, changed: Sequence[Attempt], manifest: Manifest) -> Failed | None:
        """Store the attempts. The rows of those that can't be stored are set aside; returns these, and why. None when
        the disk takes nothing."""
        since = self._store.manifest.stored

        def set_aside(failed: Failed) -> None:
            self._aside.put_rows(failed, self._journal.replay(since), before=manifest.stored)

        buffers = {attempt.key: attempt.writing for attempt in changed if attempt.writing}
        packed = {attempt.key: note for attempt in changed if (note := _note(attempt)) is not None}
        failed: Failed | None = None
        try:
            failed = await asyncio.to_thread(self._store.write, buffers, packed, manifest, set_aside)
            self._store.accept(manifest)
            self._condition.store("")
        except UnavailableError as error:
            self._condition.store(str(error))
        finally:
            if failed is None:
                for attempt in changed:
                    attempt.undo_write()
        return failed

    async def _commit(self, group: list[_Pending]) -> UnavailableError | None:
        """Journal and apply; returns why it could not be journalled."""
        try:
            first = await asyncio.to_thread(self._journal.write, [item.received.record for item in group])
        except UnavailableError as error:
            self._condition.journal(ok=False)
            return error
        except Exception:
            log.exception("journal_failed")
            return UnavailableError("the collector could not keep the message; send it again")
        self._condition.journal(ok=True)
        now = time.time_ns()
        for number, item in enumerate(group):
            received = item.received
            with self._aside.unless_applied(received.record):
                self._take(first + number, received, publish=True)
            self._job_limit.heard(received.identity.job, received.identity.run)
            lag_seconds = max(0, now - received.received_unix_ns) / 1e9
            self._metrics.of(received.identity.job).lag.observe(lag_seconds)
        self._applied = first + len(group)
        return None

    def _settle(self, size: int) -> None:
        self._pending_bytes -= size
        self._check_room()

    def _check_room(self) -> None:
        """Intake waits while too much is not journalled yet, or does not get to the bus."""
        if self._pending_bytes + self._outbox.pending_bytes <= self._settings.max_pending_bytes:
            self._room.set()
        else:
            self._room.clear()

    def _apply_again(self, released: Released) -> None:
        """A record that was handed back: it counts as seen already. One that fails again is set aside again."""
        with self._aside.unless_applied(released.record):
            received = from_record(released.record)
            self._take(self._applied, received, publish=True, again=True)
            self._aside.applied(released, self._applied)
            self._flush_now.set()
            return
        released.done()

    def _take(self, position: int, received: Received, *, publish: bool, again: bool = False) -> None:
        attempt = self._applier.apply(position, received, publish=publish, again=again)
        if attempt is None:
            return
        full = attempt.buffer.bytes > self._settings.flush_bytes
        if full or (received.kind == "summary" and attempt.buffer.steps >= self._settings.flush_steps):
            self._flush_now.set()

    async def _expire(self) -> None:
        settings = self._settings
        try:
            ages = settings.retention_seconds, settings.history_retention_seconds
            expired = await asyncio.to_thread(self._store.expire, ages[0], settings.retention_bytes, ages[1])
        except Exception:  # it is tried again; meanwhile the store grows
            log.exception("store_not_expired")
            return
        self._metrics.count_expired(expired.age_bytes, expired.size_bytes)
        live = {attempt.key for attempt in self._jobs if any(rank.streams for rank in attempt.ranks.values())}
        self._applier.forget([key for key in expired.attempts if key not in live])


def _note(attempt: Attempt) -> bytes | None:
    """None for one that can't be told: its rows can be stored all the same."""
    try:
        return notes.pack(attempt)
    except Exception:
        log.exception("attempt_note_failed", run=attempt.run, attempt=attempt.attempt)
        return None
