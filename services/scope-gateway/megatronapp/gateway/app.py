"""The gateway as a service: state, feed and web server put together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Generator
from functools import partial

import uvicorn
from prometheus_client import CollectorRegistry

from megatronapp.core.auth import Authenticator
from megatronapp.core.bus import Bus
from megatronapp.core.errors import MegatronAppError, PortInUseError
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine
from megatronapp.gateway import web
from megatronapp.gateway.deps import Parts
from megatronapp.gateway.exports import Exports
from megatronapp.gateway.feed import Feed
from megatronapp.gateway.finding_archive import FindingArchive
from megatronapp.gateway.live import Hub
from megatronapp.gateway.metrics import GatewayMetrics, RequestTimer
from megatronapp.gateway.notify.notifier import Notifier
from megatronapp.gateway.people import NamedTokens
from megatronapp.gateway.scope.connection import Connection, serve
from megatronapp.gateway.scope.relay import RelayedSocket
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.scope.tickets import Admission
from megatronapp.gateway.scope.viewers import Viewer
from megatronapp.gateway.sessions import Sessions, SignInLinks
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.silences import Silences
from megatronapp.gateway.state import JobStore
from megatronapp.gateway.watch import CollectorWatch

log = get_logger(__name__)

GRACE_SECONDS = 3
STUCK_SECONDS = 5.0
"""Not ready when nothing has gone on for so long."""


class Gateway:
    """REST, WebSocket and page on one port, MegaScope's ranks on another. Start it in a running event loop.

    `port` and `grpc_port` are the real ones after start; `links.new(role)` gives a token for a sign-in link,
    `/?token=…`.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        bus: Bus,
        registry: CollectorRegistry,
        authenticator: Authenticator,
        findings: FindingsStore | None = None,
    ) -> None:
        """`findings` None: an empty store, so that only what the bus tells is known."""
        self._settings = settings
        self._bus = bus
        self._authenticator = authenticator
        self._findings = findings or FindingsStore(MemoryBackend(), registry=registry)
        self._metrics = GatewayMetrics(registry)
        self.links = SignInLinks(settings.sign_in_link_seconds)
        self._silences = Silences(settings.alertmanager_url, settings.alertmanager_bearer)
        self._collector: CollectorShards | None = None
        self._server: _Server | None = None
        self._feed: Feed | None = None
        self._scope: Scope | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.port = settings.port
        self.grpc_port = settings.grpc_port

    async def start(self) -> None:
        """Return when listening. Raises UsageError when the port is taken."""
        listener = _listen(self._settings.host, self._settings.port)
        self.port = int(listener.getsockname()[1])
        self._collector = CollectorShards(self._settings)
        jobs = JobStore()
        self._scope = scope = Scope(self._settings, self._authenticator, jobs, self._metrics.scope)
        try:
            await scope.start(self.port, partial(_serve_relayed, scope, self._settings))
        except MegatronAppError:
            listener.close()
            raise
        self.grpc_port = scope.port
        parts = self._parts(self._collector, jobs, scope)
        app = web.build(self._settings)
        app.state.parts = parts
        app.add_middleware(RequestTimer, metrics=self._metrics)
        self._server = _Server(_uvicorn_config(app, self._settings))
        self._feed = feed = Feed(
            self._bus,
            parts.job_store,
            parts.hub,
            self._findings,
            self._collector,
            self._metrics,
            Quarantine(self._settings.quarantine_dir, self._metrics.quarantined, self._metrics.series),
            self._settings.ended_job_seconds,
        )
        self.tasks = [
            asyncio.create_task(feed.run(), name="gateway feed"),
            asyncio.create_task(parts.notifier.run(), name="gateway notifier"),
            asyncio.create_task(scope.run(), name="gateway scope"),
            asyncio.create_task(parts.watch.run(), name="gateway watch"),
            asyncio.create_task(self._server.serve([listener]), name="gateway server"),
        ]
        await self._server.listening.wait()
        log.info("gateway_listening", host=self._settings.host, port=self.port)

    async def stop(self) -> None:
        """Let running answers finish, disconnect viewers, and return."""
        if self._server is None or self._collector is None:
            return
        *working, serving = self.tasks
        if self._scope is not None:
            await self._scope.drain()
            await self._scope.stop()
        self._server.should_exit = True
        await serving
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self._collector.close()
        await self._silences.close()
        self._server = None

    def ready(self) -> bool:
        """Whether it serves: asked by another thread, which an event loop that is stuck can't keep from the truth."""
        if self._server is None or self._feed is None or any(task.done() for task in self.tasks):
            return False
        return time.monotonic() - self._feed.flushed < STUCK_SECONDS

    def _parts(self, collector: CollectorShards, jobs: JobStore, scope: Scope) -> Parts:
        key = self._settings.session_key
        signing_key = key.get_secret_value().encode() if key else secrets.token_bytes(32)
        return Parts(
            settings=self._settings,
            bus=self._bus,
            authenticator=self._authenticator,
            job_store=jobs,
            findings=self._findings,
            hub=Hub(self._settings.max_viewers, self._metrics.live_dropped),
            collector=collector,
            watch=CollectorWatch(collector),
            exports=Exports(self._settings.max_exports),
            sessions=Sessions(signing_key, self._settings.session_seconds),
            people=NamedTokens(self._settings.people_file),
            silences=self._silences,
            archive=FindingArchive(self._findings),
            links=self.links,
            notifier=Notifier(self._settings, self._bus, self._metrics),
            scope=scope,
        )


async def _serve_relayed(scope: Scope, settings: GatewaySettings, socket: RelayedSocket, admission: Admission) -> None:
    await serve(scope, Connection(socket, Viewer(admission), scope, settings))


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the process that it runs in."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _uvicorn_config(app: web.Application, settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="websockets-sansio",
        # Costs twenty times the CPU of sending, for messages that are small.
        ws_per_message_deflate=False,
        # A little more than is allowed, so that it is the gateway that refuses it, and says why.
        ws_max_size=settings.scope_max_message_bytes + 4096,
        lifespan="off",
        # Its access log would hold sign-in links.
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PortInUseError(host, port, "--port", os.strerror(error.errno or errno.EADDRINUSE)) from error
