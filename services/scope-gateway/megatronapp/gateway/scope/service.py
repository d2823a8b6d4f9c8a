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
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope.audit import Audit
from megatronapp.gateway.scope.ingest import ScopeIngest
from megatronapp.gateway.scope.recordings import Recordings
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
        self._server: aio.Server | None = None
        self._ingest = ScopeIngest(self._open, authenticator, self.metrics, settings.scope_max_frame_bytes)
        self.port = settings.grpc_port

    async def start(self) -> None:
        """Raises PortInUseError, and ConfigError for certificates that can't be used."""
        settings = self._settings
        server = make_server(settings.scope_max_frame_bytes + HEADROOM_BYTES + (2 << 20))
        server.add_generic_rpc_handlers((self._ingest.handler(),))
        self.port = listen(server, settings.host, settings.grpc_port, "--grpc-port", settings.tls)
        await server.start()
        self._server = server
        log.info("scope_listening", host=settings.host, grpc_port=self.port)

    async def run(self) -> None:
        """What is due by time, until cancelled."""
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
                    del self._sessions[run]

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

    def session(self, run: str) -> Session:
        """Of a run that a viewer names: one whose ranks have come, or that the gateway knows. Raises NotFoundError."""
        found = self._sessions.get(run)
        if found is None:
            known = self._jobs.jobs.get(run)
            if known is None:
                raise NotFoundError(f"there is no run {run[:128]!r}; GET /api/v1/jobs lists those that there are")
            found = self._add(Identity(run, known.job))
        return found

    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def _open(self, identity: trace_pb2.Identity, may_open_run: bool) -> Session:
        """A run belongs to the job that it was first heard of from."""
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
            return self._add(Identity(identity.run, identity.job))
        session.identity = Identity(identity.run, identity.job)
        return session

    def _add(self, identity: Identity) -> Session:
        if len(self._sessions) >= MAX_SESSIONS:
            raise UnavailableError(f"{MAX_SESSIONS} runs are served, which is the most")
        session = Session(identity, self._settings, self.metrics, self.audit)
        self._sessions[identity.run] = session
        return session
