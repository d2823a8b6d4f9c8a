"""MegaScope's parts put together: sessions by run, and the gRPC server that ranks dial."""

from __future__ import annotations

import asyncio
import contextlib
import time

from grpc import aio

from megatronapp.core.auth import Authenticator
from megatronapp.core.errors import ForbiddenError, NotFoundError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.rpc import listen, make_server
from megatronapp.core.scope.frame import MAX_SHARD_BYTES
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope.audit import Audit
from megatronapp.gateway.scope.ingest import ScopeIngest
from megatronapp.gateway.scope.kept_events import KeptEvents, restored
from megatronapp.gateway.scope.recordings import Recordings
from megatronapp.gateway.scope.relay import Context, Serve, ViewerRelay, first_of, pass_rank_on
from megatronapp.gateway.scope.replicas import RENEW_SECONDS, ElsewhereError, Place, Replicas, Served
from megatronapp.gateway.scope.sessions import Identity, Session
from megatronapp.gateway.scope.tickets import Tickets
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.state import JobStore
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

SWEEP_SECONDS = 0.25
SWEEP_RECORDINGS_SECONDS = 600.0
KEPT_SECONDS = 3600.0
"""A session without ranks and viewers: who comes back within it finds the events."""
MAX_SESSIONS = 1000
GRACE_SECONDS = 2.0
DRAIN_SECONDS = 2.0
HEADROOM_BYTES = 64 << 10
"""Of a message around its frame."""


class Scope:
    """`port` is the gRPC port once started."""

    def __init__(
        self, settings: GatewaySettings, authenticator: Authenticator, jobs: JobStore, metrics: ScopeMetrics
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self.metrics = metrics
        self.replicas: Replicas | None = None
        """Others that runs are shared with; None: this gateway is the only one. Known once started."""
        self.tickets = Tickets()
        self.audit = Audit()
        self.recordings = Recordings(
            settings.scope_recordings_dir,
            settings.scope_recordings_max_bytes,
            settings.scope_recordings_days,
            settings.scope_max_recording_seconds,
        )
        self.draining = asyncio.Event()
        """Set when the gateway is about to stop: viewers are sent away."""
        self.connections = 0
        self._sessions: dict[str, Session] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        """By run, what writes its events down for the other replicas."""
        self._opening = asyncio.Lock()
        self._server: aio.Server | None = None
        self._ingest = ScopeIngest(self._open, self._pass_on, authenticator, self.metrics, MAX_SHARD_BYTES)
        self.port = settings.grpc_port

    async def start(self, port: int, serve: Serve) -> None:
        """`port`: of REST and WebSockets; `serve` serves a viewer whose WebSocket another replica holds. Raises
        PortInUseError, and ConfigError for certificates that can't be used."""
        settings = self._settings
        server = make_server(MAX_SHARD_BYTES + HEADROOM_BYTES)
        server.add_generic_rpc_handlers((self._ingest.handler(),))
        self.port = listen(server, settings.host, settings.grpc_port, "--grpc-port", settings.tls)
        if settings.replica_host:
            self.replicas = Replicas(settings, self.port, port)
            self.tickets = Tickets(self.replicas.tickets)
            server.add_generic_rpc_handlers((ViewerRelay(self.replicas, serve).handler(),))
        await server.start()
        self._server = server
        log.info("scope_listening", host=settings.host, grpc_port=self.port)

    async def run(self) -> None:
        """What is due by time, until cancelled."""
        await first_of(self._sweep(), *([self._renew(self.replicas)] if self.replicas else []))

    async def _sweep(self) -> None:
        swept = -SWEEP_RECORDINGS_SECONDS
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            if now - swept > SWEEP_RECORDINGS_SECONDS:
                swept = now
                await asyncio.to_thread(self.recordings.sweep)
            for run, session in list(self._sessions.items()):
                session.sweep(now)
                if now - session.idle_since > KEPT_SECONDS:
                    self._drop(run)
                    if self.replicas:
                        with contextlib.suppress(UnavailableError):  # it ends by itself
                            await self.replicas.release([run])

    async def _renew(self, replicas: Replicas) -> None:
        """Keep this replica's runs; one that another has taken meanwhile is let go. While Redis is away nobody can take
        one, so that all stay."""
        while True:
            try:
                for run in await replicas.renew(list(self._sessions)):
                    log.warning("scope_run_moved", run=run)
                    self._drop(run)
                await replicas.announce(self._served())
            except UnavailableError as error:
                log.warning("scope_leases_not_renewed", error=str(error))
            await asyncio.sleep(RENEW_SECONDS)

    def _drop(self, run: str) -> None:
        self._sessions.pop(run).close()
        if run in self._keeping:
            self._keeping.pop(run).cancel()

    async def drain(self) -> None:
        """Send viewers away, to come back to another replica or after the restart."""
        self.draining.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.connections:
                    await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
            self._server = None
        runs = list(self._sessions)
        for run in runs:
            self._drop(run)
        if self.replicas is not None:
            with contextlib.suppress(UnavailableError):  # they end by themselves
                await self.replicas.release(runs)
            await self.replicas.close()

    async def session(self, run: str) -> Session:
        """Of a run that a viewer names: one whose ranks have come, or that the gateway knows. Raises NotFoundError,
        ElsewhereError for a run of another replica, UnavailableError."""
        if run in self._sessions:
            return self._sessions[run]
        await self.check_here(run)
        known = self._jobs.jobs.get(run)
        if known is None:
            raise NotFoundError(f"there is no run {run[:128]!r}; GET /api/v1/jobs lists those that there are")
        return await self._add(Identity(run, known.job))

    async def check_here(self, run: str) -> None:
        """Raises ElsewhereError for a run of another replica, UnavailableError."""
        if self.replicas is not None and run not in self._sessions:
            place = await self.replicas.elsewhere(run)
            if place is not None:
                raise ElsewhereError(place)

    async def served(self) -> list[Served]:
        """Runs whose ranks are connected to this replica or another one, by job. Raises UnavailableError."""
        found = {one.run: one for one in await self.replicas.served()} if self.replicas else {}
        found |= {one.run: one for one in self._served()}
        return sorted(found.values(), key=lambda one: one.job)

    def _served(self) -> list[Served]:
        return [
            Served(
                run=session.identity.run,
                job=session.identity.job,
                roles=tuple(session.structure.roles),
                layers=session.structure.layers(),
                ranks=len(session.producers),
            )
            for session in self._sessions.values()
            if session.producers
        ]

    async def _pass_on(self, place: Place, hello: bytes, context: Context) -> None:
        if self.replicas is not None:
            await pass_rank_on(self.replicas, place, hello, context)

    async def _open(self, identity: trace_pb2.Identity, may_open_run: bool) -> Session:
        """A run belongs to the job that it was first heard of from."""
        await self.check_here(identity.run)
        known = self._jobs.jobs.get(identity.run)
        owner = known.job if known is not None and known.job else None
        session = self._sessions.get(identity.run)
        if session is not None and session.identity.job:
            owner = session.identity.job
        if owner is not None and owner != identity.job:
            raise ForbiddenError(f"run {identity.run} belongs to another job than {identity.job}")
        if owner is None and not may_open_run:
            raise ForbiddenError(f"run {identity.run} is not known yet, and this token does not name it")
        if session is None:
            return await self._add(Identity(identity.run, identity.job))
        session.identity = Identity(identity.run, identity.job)
        return session

    async def _add(self, identity: Identity) -> Session:
        """One at a time, as ranks of a run come together."""
        async with self._opening:
            if identity.run not in self._sessions:
                if len(self._sessions) >= MAX_SESSIONS:
                    raise UnavailableError(f"{MAX_SESSIONS} runs are served, which is the most")
                self._sessions[identity.run] = await self._opened(identity)
        return self._sessions[identity.run]

    async def _opened(self, identity: Identity) -> Session:
        if self.replicas is None:
            return Session(identity, self._settings, self.metrics, self.audit)
        await self.replicas.claim(identity.run)
        size = self._settings.scope_events
        ring = await restored(self.replicas.events, identity.run, size)
        kept = KeptEvents(self.replicas.events, identity.run, ring, size)
        self._keeping[identity.run] = asyncio.create_task(kept.run())
        return Session(identity, self._settings, self.metrics, self.audit, ring, kept.append)
