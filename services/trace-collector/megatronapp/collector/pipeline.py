"""The way of every message: journal (in groups), then state and bus, and from time to time the store.

Messages are applied in the journal's order, live and on replay by the same code, and duplicates are left out there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from megatronapp.collector import envelope, notes
from megatronapp.collector.dedup import Dedup
from megatronapp.collector.jobs import Attempt, AttemptKey, Jobs
from megatronapp.collector.journal import Journal
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.outbox import Outbox
from megatronapp.collector.received import Received, SenderKey, from_record
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Manifest, Store
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.metrics import job_labels

log = get_logger(__name__)

Done = Callable[[UnavailableError | None], None]
"""Told when a message is durable, or why it is not."""

PROBE_SECONDS = 0.5
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
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._store = store
        self._outbox = outbox
        self._jobs = jobs
        self._metrics = metrics
        self._dedup = Dedup.from_json(store.manifest.dedup)
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
        self.controls: dict[str, bytes] = {run: bytes.fromhex(text) for run, text in store.manifest.controls.items()}
        self._shown: dict[AttemptKey, int] = {}
        self.journal_ok = True
        self.store_ok = True

    def replay(self) -> int:
        """Apply what the journal holds beyond the store and the bus; returns the number of records."""
        manifest = self._store.manifest
        count = 0
        for position, record in self._journal.replay(min(manifest.stored, manifest.published)):
            try:
                received = from_record(record)
            except DataError as error:
                log.error("journal_record_unreadable", position=position, error=str(error))
                continue
            count += 1
            if position >= manifest.stored:
                self._apply(position, received, publish=position >= manifest.published)
            else:
                self._publish(position, received, self._jobs.of(received))
        self._applied = self._journal.position
        return count

    def seen(self, sender: SenderKey, seq: int) -> bool:
        """Whether the message has been applied before."""
        return self._dedup.contains(sender, seq)

    async def submit(self, received: Received, done: Done) -> None:
        """Hand in a message; waits while too much is under way. `done` is called once, from the event loop.

        Raises UnavailableError when the store can't be written and memory is used up.
        """
        if not self.store_ok and self.buffered_bytes > STORE_MEMORY_FACTOR * self._settings.flush_bytes:
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
            if group:
                async with self._committing:
                    await self._commit(group)

    async def run_store(self) -> None:
        """Write the store when enough has come or enough time has passed, until cancelled."""
        expired = 0.0
        while True:
            timeout = self._settings.flush_seconds if self.store_ok else PROBE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._flush_now.wait(), timeout)
            self._flush_now.clear()
            await self.flush()
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                await self._expire()

    async def run_probe(self) -> None:
        """While the disk refuses the journal, or the bus is behind, look again, so that intake goes on by itself."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            self._check_room()
            if not self.journal_ok:
                self._journal_state(await asyncio.to_thread(self._journal.probe))

    async def flush(self) -> None:
        """Write everything in memory to the store and drop the journal that is no longer needed."""
        async with self._flushing:
            if not self._closed:
                await self._flush()

    async def close(self) -> None:
        """Write the store for the last time, after all streams have ended. What is under way is awaited, since a
        thread that writes can't be cancelled; nothing touches journal and store afterwards."""
        async with self._flushing, self._committing:
            await self._flush()
            self._closed = True
            self._journal.close()

    async def _flush(self) -> None:
        position = self._applied
        oldest = self._outbox.oldest
        published = position if oldest is None else min(oldest, position)
        changed = [attempt for attempt in self._jobs if attempt.changed or attempt.buffer or attempt.writing]
        before = self._store.manifest
        if not changed and published == before.published:
            return
        for attempt in changed:
            attempt.begin_write()
        manifest = Manifest(
            before.write + 1,
            position,
            published,
            self._dedup.to_json(),
            {run: control.hex() for run, control in self.controls.items()},
        )
        buffers = {attempt.key: attempt.writing for attempt in changed if attempt.writing}
        packed = {attempt.key: notes.pack(attempt) for attempt in changed}
        try:
            await asyncio.to_thread(self._store.write, buffers, packed, manifest)
        except UnavailableError as error:
            for attempt in changed:
                attempt.undo_write()
            self._store_state(str(error))
            return
        self._store.accept(manifest)
        for attempt in changed:
            attempt.end_write()
        self._store_state("")
        await asyncio.to_thread(self._journal.trim, min(position, published))

    async def _commit(self, group: list[_Pending]) -> None:
        size = sum(item.received.size for item in group)
        try:
            first = await asyncio.to_thread(self._journal.write, [item.received.record for item in group])
        except UnavailableError as error:
            self._journal_state(ok=False)
            self._settle(size)
            for item in group:
                item.done(error)
            return
        self._journal_state(ok=True)
        now = time.time_ns()
        for number, item in enumerate(group):
            received = item.received
            self._apply(first + number, received, publish=True)
            lag_seconds = max(0, now - received.received_unix_ns) / 1e9
            self._metrics.of(received.identity.job).lag.observe(lag_seconds)
        self._applied = first + len(group)
        self._settle(size)
        for item in group:
            item.done(None)

    def _settle(self, size: int) -> None:
        self._pending_bytes -= size
        self._check_room()

    def _check_room(self) -> None:
        """Intake waits while too much is not journalled yet, or does not get to the bus."""
        if self._pending_bytes + self._outbox.pending_bytes <= self._settings.max_pending_bytes:
            self._room.set()
        else:
            self._room.clear()

    def _apply(self, position: int, received: Received, *, publish: bool) -> None:
        metrics = self._metrics.of(received.identity.job)
        if not self._dedup.add(received.sender.key, received.message.seq):
            metrics.duplicates.inc()
            return
        attempt = self._jobs.of(received)
        lost = attempt.take(received)
        metrics.messages[received.kind].inc()
        if lost:
            metrics.dropped.inc(lost)
        if received.kind == "batch":
            metrics.batches.inc()
            metrics.events.inc(received.message.batch.count)
            self._show_clocks(attempt)
        elif publish:
            self._publish(position, received, attempt)
        full = attempt.buffer.bytes > self._settings.flush_bytes
        if full or (received.kind == "summary" and attempt.buffer.steps >= self._settings.flush_steps):
            self._flush_now.set()

    def _show_clocks(self, attempt: Attempt) -> None:
        residuals = attempt.clocks.alignment.residuals()
        if residuals is None or attempt.clocks.alignment.anchors == self._shown.get(attempt.key):
            return
        self._shown[attempt.key] = attempt.clocks.alignment.anchors
        labels = job_labels(attempt.job)
        gauge = self._metrics.clock_residual
        used = residuals.in_use(fitted=attempt.clocks.alignment.fitted)
        for scope, values in (("used", used), ("raw", (residuals.raw_median_ns, residuals.raw_p90_ns))):
            for quantile, value in zip(("0.5", "0.9"), values, strict=True):
                gauge.labels(**labels, scope=scope, quantile=quantile).set(value / 1e9)
        for node, seconds in attempt.clocks.nodes().items():
            self._metrics.clock_offset.labels(**labels, node=node).set(seconds)

    def _publish(self, position: int, received: Received, attempt: Attempt) -> None:
        if received.kind == "batch":
            return
        reading = attempt.clocks.at(received.identity.rank, _rank_time(received))
        value = envelope.with_clock(received.record, reading.offset_ns, reading.error_ns)
        self._outbox.put(position, received.identity.run, value)

    async def _expire(self) -> None:
        settings = self._settings
        gone: list[AttemptKey] = await asyncio.to_thread(
            self._store.expire, settings.retention_seconds, settings.retention_bytes
        )
        live = {attempt.key for attempt in self._jobs if any(rank.streams for rank in attempt.ranks.values())}
        ended = [key for key in gone if key not in live]
        self._jobs.forget(ended)
        self._dedup.forget(ended)

    def _journal_state(self, ok: bool) -> None:
        if ok != self.journal_ok:
            (log.info if ok else log.error)("journal_writable" if ok else "journal_not_writable")
        self.journal_ok = ok
        self._metrics.writable.set(self.journal_ok and self.store_ok)

    def _store_state(self, error: str) -> None:
        if bool(error) == self.store_ok:
            log.error("store_not_writable", error=error) if error else log.info("store_writable")
        self.store_ok = not error
        self._metrics.writable.set(self.journal_ok and self.store_ok)


def _rank_time(received: Received) -> int:
    """When the rank sent it, on its own clock."""
    message = received.message
    if received.kind == "summary":
        return message.summary.start_ns + message.summary.duration_ns
    if received.kind == "heartbeat":
        return message.heartbeat.clock_ns
    return message.hello.placement.host_clock_ns
