"""The operator as a service: hold the Lease, then watch and work until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import nodes
from megatronapp.operator.api import Api, Body, ConflictError, GoneError
from megatronapp.operator.cache import Cache
from megatronapp.operator.controller import RETRY_ON, BreakerState, Controller, is_ours
from megatronapp.operator.executor import Executor
from megatronapp.operator.gateway import GatewayClient
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import JOBS, KINDS, Kind
from megatronapp.operator.lease import Lease
from megatronapp.operator.login import Login
from megatronapp.operator.metrics import Metrics, Phases
from megatronapp.operator.names import Key
from megatronapp.operator.phases import PhaseReporter
from megatronapp.operator.reflector import Reflector
from megatronapp.operator.settings import OperatorSettings
from megatronapp.operator.snapshots import Unreadable
from megatronapp.operator.workqueue import WorkQueue

log = get_logger(__name__)


class Operator:
    """The service. Its one task ends when the Lease is lost: a new process starts afresh, and another operator may
    lead meanwhile."""

    def __init__(self, settings: OperatorSettings, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._registry = registry
        self._metrics = Metrics(registry)
        self.tasks: list[asyncio.Task[None]] = []
        self._watching = asyncio.Event()
        self._waiting = False

    async def start(self) -> None:
        """Begin in the background; the Lease may be somebody else's for long."""
        self._api = Api(await Login.find())
        self._lease = Lease(
            self._api,
            self._settings.namespace,
            self._settings.lease_name,
            self._identity(),
            self._settings.lease_seconds,
        )
        self.tasks = [asyncio.create_task(self._lead(), name="lead")]

    async def stop(self) -> None:
        if self.tasks:
            self.tasks[0].cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            with contextlib.suppress(UnavailableError, ConflictError, GoneError):
                await self._lease.release()
            await self._api.close()

    def ready(self) -> bool:
        """Also while another one leads: it would take over."""
        alive = bool(self.tasks) and not self.tasks[0].done()
        return alive and (self._waiting or self._watching.is_set())

    def _identity(self) -> str:
        return f"{self._settings.identity}_{os.getpid()}"

    async def _lead(self) -> None:
        """Hold the Lease and work, until cancelled. Raises what has ended one of the parts."""
        self._waiting = True
        await self._lease.acquire()
        self._waiting = False
        self._metrics.leader.set(1)
        breaker = BreakerState(self._lease.trip)
        parts = Parts(self._settings, self._api, self._metrics, self._registry, breaker, self._identity())
        tasks = [
            asyncio.create_task(self._lease.keep(lambda: self._renewed(breaker)), name="lease"),
            asyncio.create_task(parts.work(self._watching), name="work"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._metrics.leader.set(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _renewed(self, breaker: BreakerState) -> None:
        breaker.set(self._lease.tripped)
        self._metrics.breaker.set(breaker.tripped)


class Parts:
    """Reflectors, queue and controller of a leading operator."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: Api,
        metrics: Metrics,
        registry: CollectorRegistry,
        breaker: BreakerState,
        identity: str,
    ) -> None:
        self._settings, self._metrics = settings, metrics
        self._informers = InformerCache(self._set_aside)
        self._cache = cache = Cache(self._informers)
        spaces = settings.watch_namespaces
        self._reflectors = [Reflector(api, kind, spaces, self._on_list, self._on_event) for kind in KINDS]
        self._executor = Executor(api, identity)
        self._controller = Controller(cache, self._executor, settings, metrics, breaker)
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile, RETRY_ON)
        Phases(registry, lambda: [phase_of(cache, key) for key in cache.job_keys()])

    async def work(self, watching: asyncio.Event) -> None:
        """Decide and act until cancelled; set `watching` when all that is there is known. Nothing is decided before."""
        await asyncio.gather(*(reflector.list() for reflector in self._reflectors))
        watching.set()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.watch())
            group.create_task(self._queue.run(self._settings.workers))
            group.create_task(self._resync())
            group.create_task(self._release_nodes())
            if self._settings.gateway_url:
                group.create_task(self._listen())
            if self._settings.gateway_url and self._settings.phase_token:
                group.create_task(self._report_phases())

    def _on_event(self, kind: Kind, body: Body, deleted: bool) -> None:
        if kind == JOBS and deleted:
            self._cache.deleted_child(Key.of_child(body), body["metadata"]["name"])
        self._mark(self._informers.event(kind, body, deleted))

    def _on_list(self, kind: Kind, bodies: Iterable[Body], version: int) -> None:
        if kind == JOBS:
            self._cache.listed_children(version)
        self._mark(self._informers.listed(kind, bodies))

    def _set_aside(self, found: Unreadable) -> None:
        self._metrics.unreadable.labels(found.kind).inc()
        log.warning("object_set_aside", kind=found.kind, key=f"{found.namespace}/{found.name}", error=found.error)

    def _mark(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._queue.mark(key)

    async def _resync(self) -> None:
        """Look at every job anew, one after the other, so that no event that was lost is lost for ever."""
        while True:
            keys = self._cache.job_keys()
            for key in keys:
                await asyncio.sleep(self._resync_pause() / len(keys))
                self._queue.mark(key)
            if not keys:
                await asyncio.sleep(self._resync_pause())

    def _resync_pause(self) -> float:
        """Of no fixed length, so that operators and jobs do not fall into step."""
        return self._settings.resync_seconds * random.uniform(0.8, 1.0)

    async def _reconcile(self, key: Key) -> float | None:
        self._metrics.queued.set(len(self._queue))
        return await self._controller.reconcile(key)

    async def _listen(self) -> None:
        """Ask the gateway for progress and findings, again and again."""
        client = GatewayClient(self._settings.gateway_url, self._settings.gateway_token)
        try:
            while True:
                await self._poll_reports(client)
                await asyncio.sleep(self._settings.poll_seconds)
        finally:
            await client.close()

    async def _poll_reports(self, client: GatewayClient) -> None:
        try:
            self._mark(self._controller.update_reports(await client.reports()))
        except Exception as error:  # noqa: BLE001  # what the gateway says is others' word
            log.warning("no_reports", error=str(error) or type(error).__name__)

    async def _report_phases(self) -> None:
        """Tell the gateway where jobs stand, also those that no rank was heard of: what is new, now and then all."""
        client, phases = GatewayClient(self._settings.gateway_url, self._settings.phase_token), PhaseReporter()
        all_sent = time.monotonic()
        try:
            while True:
                if time.monotonic() - all_sent >= self._settings.phases_seconds:
                    phases.forget()
                    all_sent = time.monotonic()
                await report_phases(client, phases, self._cache)
                await asyncio.sleep(self._settings.poll_seconds)
        finally:
            await client.close()

    async def _release_nodes(self) -> None:
        """Nodes whose time is up; of the cluster, not of a job, which may be gone long since."""
        while True:
            now = datetime.now(UTC)
            for node in [node for node in self._cache.nodes().values() if nodes.is_due(node, now)]:
                try:
                    await self._executor.release(node.name, now)
                except Exception as error:  # noqa: BLE001  # one node's trouble is no other's
                    log.warning("node_not_released", node=node.name, error=str(error))
            await asyncio.sleep(self._settings.poll_seconds)


async def report_phases(client: GatewayClient, phases: PhaseReporter, cache: Cache) -> None:
    """Once. What the gateway does not take is told again the next time."""
    try:
        bodies = (cache.job(key) for key in cache.job_keys())
        for jobs in phases.news(body for body in bodies if body is not None and is_ours(body)):
            await client.patch_phases(jobs)
            phases.sent(jobs)
    except Exception as error:  # noqa: BLE001  # jobs are looked after all the same
        log.warning("phases_not_told", error=str(error) or type(error).__name__)


def phase_of(cache: Cache, key: Key) -> str:
    body = cache.job(key) or {}
    return str((body.get("status") or {}).get("phase", "Pending"))
