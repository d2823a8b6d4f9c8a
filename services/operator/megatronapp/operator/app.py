"""The operator as a service: hold the Lease, then watch and work until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import UTC, datetime
from typing import Any, cast

import kopf
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import ConfigError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import handlers, nodes
from megatronapp.operator.act import Actor
from megatronapp.operator.api import Api, ConflictError, GoneError
from megatronapp.operator.cache import Cache
from megatronapp.operator.controller import RETRY_ON, BreakerState, Controller
from megatronapp.operator.gateway import GatewayClient
from megatronapp.operator.lease import Lease
from megatronapp.operator.metrics import Metrics, Phases
from megatronapp.operator.names import Key
from megatronapp.operator.settings import OperatorSettings
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
        self._api = Api.connect(login())
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
        """Return when kopf was asked to stop (the signals are its). Raises what has ended one of the parts."""
        self._waiting = True
        await self._lease.acquire()
        self._waiting = False
        self._metrics.leader.set(1)
        breaker = BreakerState(self._lease.trip)
        parts = Parts(self._settings, self._api, self._metrics, self._registry, breaker, self._identity())
        tasks = [
            asyncio.create_task(self._lease.keep(lambda: self._renewed(breaker)), name="lease"),
            asyncio.create_task(parts.watch(self._watching), name="watch"),
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
    """Watches, queue and controller of a leading operator."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: Api,
        metrics: Metrics,
        registry: CollectorRegistry,
        breaker: BreakerState,
        identity: str,
    ) -> None:
        self._settings, self._metrics, self._registry, self._breaker = settings, metrics, registry, breaker
        self._identity = identity
        self._actor = Actor(api, identity)
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile, RETRY_ON)
        self._controller: Controller | None = None
        self._cache: Cache | None = None

    async def watch(self, watching: asyncio.Event) -> None:
        """Run kopf until cancelled; set `watching` when all that is there has been listed."""
        operator = handlers.registry(self._queue.mark, self._deleted, self._on_node, lambda **_: login())

        @kopf.on.startup(registry=operator)
        async def _started(**kwargs: object) -> None:
            self._begin(Cache(handlers.watched(kwargs)))

        ready = asyncio.Event()
        spaces = self._settings.watch_namespaces
        task = asyncio.create_task(
            kopf.operator(
                registry=operator,
                settings=handlers.settings(),
                standalone=True,
                # kopf would make one up from the user's name, which a container's user need not have.
                identity=cast("Any", self._identity),
                clusterwide=not spaces,
                namespaces=spaces,
                ready_flag=ready,
            )
        )
        try:
            begun = asyncio.create_task(ready.wait())
            await asyncio.wait({begun, task}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if ready.is_set():
                watching.set()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def work(self, watching: asyncio.Event) -> None:
        await watching.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._settings.workers))
            group.create_task(self._release_nodes())
            if self._settings.gateway_url:
                group.create_task(self._listen())

    def _begin(self, cache: Cache) -> None:
        self._cache = cache
        self._controller = Controller(cache, self._actor, self._settings, self._metrics, self._breaker)
        Phases(self._registry, lambda: [phase_of(cache, key) for key in cache.job_keys()])

    async def _reconcile(self, key: Key) -> float | None:
        self._metrics.queued.set(len(self._queue))
        if self._controller is None:
            raise UnavailableError("the watches have not begun")
        return await self._controller.reconcile(key)

    def _deleted(self, key: Key, name: str) -> None:
        if self._cache is not None:
            self._cache.deleted_child(key, name)

    def _on_node(self, name: str) -> None:
        """A node that comes or goes matters to the jobs with pods on it."""
        if self._cache is not None:
            for key in self._cache.keys_on(name):
                self._queue.mark(key)

    async def _listen(self) -> None:
        """Ask the gateway for progress and findings, again and again."""
        client = GatewayClient(self._settings.gateway_url, self._settings.gateway_token)
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await self._hear(client)
                await asyncio.sleep(self._settings.poll_seconds)
        finally:
            await client.close()

    async def _hear(self, client: GatewayClient) -> None:
        try:
            reports = await client.reports()
        except UnavailableError as error:
            log.warning("no_reports", error=str(error))
            return
        if self._controller is not None:
            for key in self._controller.heard(reports):
                self._queue.mark(key)

    async def _release_nodes(self) -> None:
        """Nodes whose time is up; of the cluster, not of a job, which may be gone long since."""
        while True:
            now = datetime.now(UTC)
            for node in self._cache.nodes().values() if self._cache else ():
                if nodes.is_due(node, now):
                    try:
                        await self._actor.release(node.name, now)
                    except RETRY_ON as error:
                        log.info("node_not_released", node=node.name, error=str(error))
            await asyncio.sleep(self._settings.poll_seconds)


def login(**_: object) -> kopf.ConnectionInfo:
    """A pod's service account, else the kubeconfig. Raises ConfigError where there is neither."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ConfigError("there is no API server to talk to: set KUBECONFIG, or run this in a pod")
    return found


def phase_of(cache: Cache, key: Key) -> str:
    body = cache.job(key) or {}
    return str((body.get("status") or {}).get("phase", "Pending"))
