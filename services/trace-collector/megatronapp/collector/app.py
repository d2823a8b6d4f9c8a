"""The collector: starts its parts in order and stops them in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from megatronapp.collector import notes
from megatronapp.collector.control import Controls
from megatronapp.collector.ingest import TraceIngest
from megatronapp.collector.jobs import Jobs
from megatronapp.collector.journal import Journal
from megatronapp.collector.memory import keep_freed_memory
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.outbox import Outbox
from megatronapp.collector.pipeline import Pipeline
from megatronapp.collector.presence import Presence
from megatronapp.collector.query import TraceQuery
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Store
from megatronapp.core.auth import Authenticator
from megatronapp.core.bus import Bus
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine
from megatronapp.core.rpc import listen, make_server
from megatronapp.v1 import trace_pb2_grpc

log = get_logger(__name__)

GRACE_SECONDS = 2.0
DRAIN_SECONDS = 5.0


class Collector:
    """Takes in what ranks send, keeps it, and hands it on. `port` is the gRPC port once started."""

    def __init__(
        self, settings: CollectorSettings, bus: Bus, registry: CollectorRegistry, authenticator: Authenticator
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._metrics = CollectorMetrics(registry)
        self._authenticator = authenticator
        self.tasks: list[asyncio.Task[None]] = []
        self._running = False
        self.port = 0

    async def start(self) -> None:
        """Take up what the journal holds, then listen.

        Raises UnavailableError when the data folder can't be used, DataError when it can't be understood, UsageError
        when the port is taken, ConfigError when the certificate can't be used.
        """
        settings = self._settings
        keep_freed_memory()
        self._store = await asyncio.to_thread(Store, settings.data_dir / "store")
        self._jobs = Jobs(self._store.manifest.owners)
        self._journal = await asyncio.to_thread(self._open_journal)
        self._outbox = Outbox(self._bus)
        self._load_notes()
        quarantine = Quarantine(settings.data_dir / "quarantine", self._metrics.quarantined, self._metrics.series)
        self._pipeline = Pipeline(
            settings, self._journal, self._store, self._outbox, self._jobs, self._metrics, quarantine
        )
        replayed = self._pipeline.replay()
        pipeline = self._pipeline
        controls = Controls(self._bus, pipeline.controls)
        presence = Presence(self._bus, self._jobs, self._outbox, self._metrics, lambda: pipeline.applied)
        self._ingest = TraceIngest(pipeline, presence, controls, self._authenticator, self._metrics)
        await self._listen()
        self._start(pipeline.run_journal(), pipeline.run_store(), pipeline.run_probe(), pipeline.run_released())
        self._start(self._outbox.run(), controls.run())
        self._start(presence.answer_hello_requests(), presence.report_missing(settings.return_seconds))
        self._watch()
        self._running = True
        log.info("listening", grpc_port=self.port, replayed=replayed, attempts=len(list(self._jobs)))

    async def stop(self) -> None:
        """Let streams finish what they sent, hand on what is due, write the store."""
        if not self._running:
            return
        self._running = False
        self._ingest.stopping = True
        await self._health.enter_graceful_shutdown()
        await self._server.stop(GRACE_SECONDS)
        self._query.close()
        await self._outbox.drain(DRAIN_SECONDS)
        await self._pipeline.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def ready(self) -> bool:
        """Whether messages are taken now."""
        return self._running and self._pipeline.ready() and not any(_failed(task) for task in self.tasks)

    def _open_journal(self) -> Journal:
        settings = self._settings
        return Journal(
            settings.data_dir / "journal",
            segment_bytes=settings.segment_bytes,
            fsync=settings.fsync,
            at_least=self._store.manifest.stored,
        )

    def _load_notes(self) -> None:
        """A run that several jobs have written to is the earliest one's."""
        attempts = []
        for path, note in self._store.notes():
            try:
                attempts.append(notes.unpack(note))
            except Exception:  # one attempt must not stop the others
                log.exception("attempt_note_unreadable", path=str(path))
        for attempt in sorted(attempts, key=lambda attempt: attempt.first_seen_unix_ns):
            self._jobs.add(attempt)

    async def _listen(self) -> None:
        settings = self._settings
        self._server = make_server(settings.max_message_bytes)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers((self._ingest.handler(),))
        self._query = TraceQuery(self._jobs, self._store, self._authenticator, self._metrics)
        trace_pb2_grpc.add_TraceQueryServicer_to_server(self._query, self._server)  # type: ignore[no-untyped-call]
        self.port = listen(self._server, settings.host, settings.grpc_port, "--grpc-port", settings.tls)
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def _start(self, *parts: Coroutine[Any, Any, None]) -> None:
        self.tasks.extend(asyncio.create_task(part) for part in parts)

    def _watch(self) -> None:
        metrics = self._metrics
        metrics.watch(metrics.bus_backlog, lambda: len(self._outbox))
        metrics.watch(metrics.journal_bytes, self._journal.size_bytes)
        metrics.watch(metrics.store_bytes, self._store.size_bytes)


def _failed(task: asyncio.Task[None]) -> bool:
    """One that looks for missing ranks ends soon after the start, as it should."""
    return task.done() and (task.cancelled() or task.exception() is not None)
