"""Hostile objects beside an innocent job, listed at the start or sent by a watch later: the operator goes on.

A server in the API server's place, since the real one refuses what the definition's maxima forbid: what was stored
before them is still there after an upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from megatronapp.operator.api import Api
from megatronapp.operator.app import Parts
from megatronapp.operator.controller import BreakerState
from megatronapp.operator.metrics import Metrics
from megatronapp.operator.settings import OperatorSettings

Body = dict[str, Any]
FAR = 10**12
TRAINING_JOBS, JOBS = "/apis/megatronapp.io/v1alpha1/trainingjobs", "/apis/batch/v1/jobs"
COLLECTIONS = (TRAINING_JOBS, JOBS, "/api/v1/pods", "/api/v1/services", "/api/v1/nodes")
EVENTS = ("events", "networkpolicies")


class Server:
    """Keeps what it is given; a watch tells of what is put there after the list."""

    def __init__(self) -> None:
        self.there: dict[str, dict[tuple[str, str], Body]] = defaultdict(dict)
        """By collection, then by namespace and name. What is too deep for Python to write is represented by a word."""
        self.watch_events: dict[str, list[tuple[int, str]]] = defaultdict(list)
        """By collection: version and text of every event."""
        self.version = 1
        self.contentions = 0
        """How many more Jobs are answered with contention."""

    def put(self, collection: str, body: Body, change: str = "ADDED") -> Body:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        body["metadata"].setdefault("uid", f"uid-{self.version}")
        self.there[collection][body["metadata"]["namespace"], body["metadata"]["name"]] = body
        self.watch_events[collection].append((self.version, with_depth({"type": change, "object": body}) + "\n"))
        return body

    def get(self, collection: str, name: str) -> Body | None:
        return self.there[collection].get(("team", name))

    def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        body = self.get(TRAINING_JOBS, name) or {}
        found: Body = next((c for c in (body.get("status") or {}).get("conditions", []) if c["type"] == kind), {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in COLLECTIONS:
            return await (self._watch(request) if "watch" in request.query else self._list(request))
        if request.method == "POST":
            return self._create(request.path, await request.json())
        if request.method == "PUT" and request.path.endswith("/status"):
            return self._status(request.path, await request.json())
        return await self._found(request)

    async def _list(self, request: web.Request) -> web.Response:
        listed = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.there[request.path].values())}
        return answered(listed)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer, version = web.StreamResponse(), int(request.query["resourceVersion"])
        await answer.prepare(request)
        while True:
            for at, text in [event for event in self.watch_events[request.path] if event[0] > version]:
                await answer.write(text.encode())
                version = at
            await asyncio.sleep(0.01)

    def _create(self, path: str, body: Body) -> web.Response:
        collection, namespace = whole(path)
        name = body["metadata"]["name"]
        if path.endswith(EVENTS):
            return answered(body, 201)
        if collection == JOBS and self.contentions:
            self.contentions -= 1
            refusal = {"reason": "Conflict", "message": 'Operation cannot be fulfilled on resourcequotas "all"'}
            return answered(refusal, 409)
        if (namespace, name) in self.there[collection]:
            return answered({"reason": "AlreadyExists", "message": f"{name} already exists"}, 409)
        return answered(self.put(collection, body), 201)

    def _status(self, path: str, body: Body) -> web.Response:
        collection, namespace = whole(path.removesuffix("/status").rsplit("/", 1)[0])
        known = self.there[collection][namespace, body["metadata"]["name"]]
        return answered(self.put(collection, {**known, "status": body["status"]}, "MODIFIED"))

    async def _found(self, request: web.Request) -> web.Response:
        collection, namespace = whole(request.path)
        wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        found = self.there[collection].get((namespace, wanted))
        return answered({"items": [found] if found else []})


def whole(path: str) -> tuple[str, str]:
    """The collection over all namespaces, and the namespace."""
    parts = path.split("/")
    at = parts.index("namespaces")
    return "/".join(parts[:at] + parts[at + 2 :]), parts[at + 1]


def answered(body: Body, status: int = 200) -> web.Response:
    return web.Response(text=with_depth(body), status=status, content_type="application/json")


def with_depth(body: Body) -> str:
    """JSON with lists as deep as "deep N" says in their place."""
    text = json.dumps(body)
    for levels in (300, 1100):
        text = text.replace(f'"deep {levels}"', "[" * levels + "]" * levels)
    return text


def training_job(name: str, **spec: Any) -> Body:
    return {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "team", "uid": f"run-{name}", "generation": 1},
        "spec": {"procPerNode": 1, **spec},
    }


def a_job(name: str, labels: dict[str, str], owner: str = "") -> Body:
    owners = [{"kind": "TrainingJob", "name": owner, "uid": f"run-{owner}", "controller": True}] if owner else []
    managed = {"app.kubernetes.io/managed-by": "megatronapp-operator"}
    metadata = {"name": name, "namespace": "team", "labels": managed | labels, "ownerReferences": owners}
    return {"kind": "Job", "metadata": metadata, "spec": {}}


def in_template(**pod: Any) -> Body:
    return {"podTemplate": {"spec": pod}}


REFUSED: dict[str, tuple[Body, str]] = {
    "attempt label": (
        {"podTemplate": {"metadata": {"labels": {"megatronapp.io/attempt": "abc"}}}},
        "megatronapp.io/attempt is set by the platform",
    ),
    "container name": (in_template(containers=[{"name": {"a": "b"}}]), "name must be given, as text"),
    "deadline": ({"activeDeadlineSeconds": FAR}, "spec.activeDeadlineSeconds: "),
    "cooldown": ({"remediation": {"cooldownSeconds": FAR}}, "spec.remediation.cooldownSeconds: "),
    "ttl": ({"ttlSecondsAfterFinished": FAR}, "spec.ttlSecondsAfterFinished: "),
    "patience": ({"failurePolicy": {"stuckTerminationSeconds": FAR}}, "failurePolicy.stuckTerminationSeconds: "),
    "300 levels": (in_template(affinity="deep 300"), "nested more than 32 levels deep"),
    "1,100 levels": (in_template(affinity="deep 1100"), "nested more than 32 levels deep"),
    "toleration key": ({"scheduling": {"tolerations": [{"key": {"a": "b"}}]}}, "key must be text"),
}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@asynccontextmanager
async def operating(api: Api, registry: CollectorRegistry, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
    chosen = OperatorSettings.load(**settings)
    parts = Parts(chosen, api, Metrics(registry), registry, BreakerState(lambda _: None), "test")
    watching = asyncio.Event()
    task = asyncio.create_task(parts.work(watching))
    try:
        await until("all is listed", watching.is_set, task)
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
            await task


async def until(what: str, done: Callable[[], Any], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(15):
        while not done():
            assert not task.done(), f"the operator has ended before {what}: {task.exception()}"
            await asyncio.sleep(0.02)


async def innocent_is_served(server: Server, task: asyncio.Task[None]) -> None:
    """A job that is made after the attack gets its children and its status."""
    server.put(TRAINING_JOBS, training_job("innocent"))
    await until("the innocent's Job is made", lambda: server.get(JOBS, "innocent-1"), task)
    await until("it is reported", lambda: server.condition("innocent", "PodsReady")[0] == "False", task)
    assert server.condition("innocent", "ReconcileError") == ("", "", "")


@pytest.mark.parametrize("first", [True, False], ids=["listed", "watched"])
@pytest.mark.parametrize("attack", REFUSED)
async def test_a_hostile_spec_is_refused_and_hinders_nobody(
    server: Server, api: Api, registry: CollectorRegistry, attack: str, first: bool
) -> None:
    spec, message = REFUSED[attack]
    if first:
        server.put(TRAINING_JOBS, training_job("hostile", **spec))
    async with operating(api, registry) as task:
        if not first:
            server.put(TRAINING_JOBS, training_job("hostile", **spec))
        await innocent_is_served(server, task)

        await until("it is reported", lambda: server.condition("hostile", "InvalidTemplate")[0] == "True", task)
        assert server.condition("hostile", "InvalidTemplate")[1] == "SpecRefused"
        assert message in server.condition("hostile", "InvalidTemplate")[2]
        assert server.get(JOBS, "hostile-1") is None
        assert registry.get_sample_value("megatronapp_operator_reconcile_errors_total") == 0


@pytest.mark.parametrize("first", [True, False], ids=["listed", "watched"])
async def test_a_job_of_somebody_else_with_our_labels_is_ignored(
    server: Server, api: Api, registry: CollectorRegistry, first: bool
) -> None:
    foreign = a_job("foreign", {"megatronapp.io/training-job": "innocent"})
    if first:
        server.put(JOBS, foreign)
    async with operating(api, registry) as task:
        if not first:
            server.put(JOBS, foreign)
        await innocent_is_served(server, task)

    assert registry.get_sample_value("megatronapp_operator_unreadable_objects_total", {"kind": "jobs"}) is None


async def test_an_attempt_that_can_not_be_read_is_told_to_its_job_and_forgiven_when_it_is_gone(
    server: Server, api: Api, registry: CollectorRegistry
) -> None:
    labels = {"megatronapp.io/training-job": "spoilt", "megatronapp.io/attempt": "abc"}
    server.put(TRAINING_JOBS, training_job("spoilt"))
    bad = server.put(JOBS, a_job("spoilt-9", labels, owner="spoilt"))
    async with operating(api, registry) as task:
        await innocent_is_served(server, task)

        await until("it is reported", lambda: server.condition("spoilt", "ReconcileError")[0] == "True", task)
        _, reason, message = server.condition("spoilt", "ReconcileError")
        assert reason == "UnreadableObject"
        assert "jobs/spoilt-9 can't be read" in message
        assert server.get(JOBS, "spoilt-1") is None
        assert registry.get_sample_value("megatronapp_operator_unreadable_objects_total", {"kind": "jobs"}) == 1

        assert _errors(registry) == 0, "it is the job's own matter, not the operator's"

        server.put(JOBS, bad, "DELETED")
        await until("it is looked after", lambda: server.get(JOBS, "spoilt-1"), task)
        await until("it is cleared", lambda: server.condition("spoilt", "ReconcileError")[0] == "False", task)


async def test_what_nobody_expected_is_told_counted_and_tried_again(
    server: Server, api: Api, registry: CollectorRegistry
) -> None:
    """A status that this operator can't read, in a spec that it can't read either."""
    odd = training_job("odd", podTemplate={"spec": "x"})
    odd["status"] = {"phase": "FromTheFuture"}
    server.put(TRAINING_JOBS, odd)
    async with operating(api, registry) as task:
        await innocent_is_served(server, task)
        await until("it is reported", lambda: server.condition("odd", "ReconcileError")[0] == "True", task)
        await until("it is tried again", lambda: _errors(registry) >= 2, task)

        assert server.condition("odd", "ReconcileError")[1] == "UnexpectedError"
        there = server.get(TRAINING_JOBS, "odd") or {}
        assert there["status"]["phase"] == "FromTheFuture"
        errors = [c for c in there["status"]["conditions"] if c["type"] == "ReconcileError"]
        server.put(TRAINING_JOBS, {**there, "spec": {"procPerNode": 1}, "status": {"conditions": errors}}, "MODIFIED")
        await until("it is looked after", lambda: server.get(JOBS, "odd-1"), task)
        await until("it is cleared", lambda: server.condition("odd", "ReconcileError")[0] == "False", task)


async def test_a_job_whose_pod_is_more_than_the_installation_allows_is_told_and_gets_none(
    server: Server, api: Api, registry: CollectorRegistry
) -> None:
    server.put(TRAINING_JOBS, training_job("greedy", serviceAccountName="cluster-admin"))
    async with operating(api, registry) as task:
        await until("it is reported", lambda: server.condition("greedy", "InvalidTemplate")[0] == "True", task)
        await innocent_is_served(server, task)

        assert "operator.jobs.serviceAccounts" in server.condition("greedy", "InvalidTemplate")[2]
        assert server.get(JOBS, "greedy-1") is None
        assert "kubectl" not in server.condition("greedy", "PodsReady")[2], "there is no Job to describe"

        there = server.get(TRAINING_JOBS, "greedy") or {}
        there["metadata"]["generation"] = 2
        server.put(TRAINING_JOBS, {**there, "spec": {"procPerNode": 1}}, "MODIFIED")
        await until("it is made now", lambda: server.get(JOBS, "greedy-1"), task)


def _errors(registry: CollectorRegistry) -> float:
    return registry.get_sample_value("megatronapp_operator_reconcile_errors_total") or 0.0


async def test_a_create_that_met_contention_is_done_again(
    server: Server, api: Api, registry: CollectorRegistry
) -> None:
    """Of a ResourceQuota, say: 409, and nothing was made. Three times, by when no event makes it look again."""
    server.contentions = 3
    async with operating(api, registry) as task:
        server.put(TRAINING_JOBS, training_job("quota"))

        await until("its Job is made", lambda: server.get(JOBS, "quota-1"), task)

    assert server.contentions == 0


async def test_every_job_is_looked_at_again_though_nothing_happens(
    server: Server, api: Api, registry: CollectorRegistry
) -> None:
    for name in ("one", "two"):
        server.put(TRAINING_JOBS, training_job(name, suspend=True))

    def looks() -> float:
        return registry.get_sample_value("megatronapp_operator_reconcile_seconds_count") or 0.0

    async with operating(api, registry, resync_seconds=1.0) as task:
        await until("they are at rest", lambda: all(server.get(JOBS, f"{name}-1") for name in ("one", "two")), task)
        await asyncio.sleep(0.5)
        before = looks()
        await until("each has been looked at twice more", lambda: looks() >= before + 4, task)
