"""What is written on a node, by real HTTP: each write is a new version of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from megatronapp.core.trainingjob import Status, TrainingJob
from megatronapp.operator import nodes
from megatronapp.operator.actions import Create, MarkNode, RecordEvent
from megatronapp.operator.api import Api, ConflictError, RefusedError
from megatronapp.operator.executor import Executor
from megatronapp.operator.observation import Observation
from megatronapp.operator.snapshots import Node, SlowMark
from tests.unit.operator.samples import NOW, UID, running, training_job

FOREIGN = {"key": "example.com/others", "effect": "NoExecute"}
MARK = SlowMark(NOW, NOW, "ns/gpt")


class NodeServer:
    """One node, which takes a patch of the version that it has, and others change once it was read."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "node2", "resourceVersion": "1"},
            "spec": {"taints": [FOREIGN]},
        }
        self.changed_by_others_after_read = False

        self.create_refusal: dict[str, str] = {}
        self.jobs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = [{"metadata": {"name": "e"}, "reason": "FailedMount"}]
        self.events_status = 200
        self.asked: list[str] = []
        self.recorded: list[str] = []
        """Names of the events that were made."""

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/apis/batch/v1/namespaces/team/jobs":
            if request.method == "POST":
                return web.json_response(self.create_refusal, status=409)
            return web.json_response({"items": self.jobs})
        if request.path == "/api/v1/namespaces/team/events":
            if request.method == "POST":
                return self._record(await request.json())
            self.asked.append(request.query["fieldSelector"])
            return web.json_response({"items": self.events, "message": "may not list"}, status=self.events_status)
        if request.path not in {"/api/v1/nodes/node2", "/api/v1/nodes/node2/status"}:
            return web.json_response({"message": "not found"}, status=404)
        patch = await request.json()
        if patch.get("metadata", {}).get("resourceVersion", self._version) != self._version:
            return web.json_response({"message": "changed meanwhile"}, status=409)
        answer = self._write(patch)
        if self.changed_by_others_after_read:
            self._write({})
        return web.json_response(answer)

    def _record(self, event: dict[str, Any]) -> web.Response:
        """As the API server does: one event of a name."""
        name = event["metadata"]["name"]
        if name in self.recorded:
            return web.json_response({"reason": "AlreadyExists", "message": f"{name} already exists"}, status=409)
        self.recorded.append(name)
        return web.json_response(event, status=201)

    @property
    def _version(self) -> str:
        return str(self.node["metadata"]["resourceVersion"])

    def _write(self, patch: dict[str, Any]) -> dict[str, Any]:
        metadata = {
            **self.node["metadata"],
            **patch.get("metadata", {}),
            "resourceVersion": str(int(self._version) + 1),
        }
        self.node = {**self.node, **patch, "metadata": metadata}
        return self.node


@pytest.fixture
def server() -> NodeServer:
    return NodeServer()


@pytest.fixture
def executor(api: Api) -> Executor:
    return Executor(api, "test")


async def test_a_slow_node_gets_condition_mark_and_taint_beside_others(server: NodeServer, executor: Executor) -> None:
    await executor.do(MarkNode("node2", MARK, "slow ranks"), running())

    found = Node.of(server.node)
    assert found.taints == (("example.com/others", "NoExecute"), (nodes.TAINT, nodes.EFFECT))
    assert found.mark == MARK
    assert server.node["status"]["conditions"][0]["status"] == "True"


async def test_a_released_node_keeps_its_mark_and_others_taints(server: NodeServer, executor: Executor) -> None:
    await executor.do(MarkNode("node2", MARK, "slow ranks"), running())

    await executor.release("node2", NOW)

    found = Node.of(server.node)
    assert found.taints == (("example.com/others", "NoExecute"),)
    assert found.mark == MARK
    assert server.node["status"]["conditions"][0]["status"] == "False"


async def test_taints_are_not_written_over_what_somebody_has_changed(server: NodeServer, executor: Executor) -> None:
    server.changed_by_others_after_read = True

    with pytest.raises(ConflictError):
        await executor.do(MarkNode("node2", MARK, "slow ranks"), running())

    assert server.node["spec"]["taints"] == [FOREIGN]


async def test_a_node_that_is_gone_needs_no_mark(executor: Executor) -> None:
    await executor.do(MarkNode("node9", MARK, "slow ranks"), running())
    await executor.release("node9", NOW)


# ---- what 409 means

THERE = {"reason": "AlreadyExists", "message": 'jobs.batch "gpt-1" already exists'}
CONTENTION = {"reason": "Conflict", "message": 'Operation cannot be fulfilled on resourcequotas "all"'}
JOB = Create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gpt-1", "namespace": "team"}})


@pytest.mark.parametrize("refusal", [CONTENTION, {}], ids=["contention", "without a reason"])
async def test_a_create_that_met_contention_is_not_done(server: NodeServer, executor: Executor, refusal: Any) -> None:
    server.create_refusal = refusal
    server.jobs = [owned_by(UID)]

    with pytest.raises(ConflictError):
        await executor.do(JOB, running())


async def test_an_object_that_is_there_already_is_as_good_as_made(server: NodeServer, executor: Executor) -> None:
    server.create_refusal = THERE
    server.jobs = [owned_by(UID)]

    assert await executor.do(JOB, running()) == server.jobs[0]


async def test_an_object_that_is_gone_again_has_still_to_be_made(server: NodeServer, executor: Executor) -> None:
    server.create_refusal = THERE

    with pytest.raises(ConflictError):
        await executor.do(JOB, running())


async def test_an_object_of_somebody_else_is_told(server: NodeServer, executor: Executor) -> None:
    server.create_refusal = THERE
    server.jobs = [{"metadata": {"name": "gpt-1"}}]

    with pytest.raises(RefusedError, match="belongs to somebody else"):
        await executor.do(JOB, running())


def owned_by(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "gpt-1", "ownerReferences": [{"kind": "TrainingJob", "uid": uid, "controller": True}]}}


# ---- the operator's own events

FAILED = RecordEvent(True, "RankFailed", "gpt-1-0 ended with exit code 1")


def made_again() -> TrainingJob:
    """A later TrainingJob of the same name."""
    job = training_job()
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "another"})})


@pytest.mark.parametrize(
    ("later", "observed"),
    [
        (FAILED, running(training_job(Status(attempt=2)))),
        (replace(FAILED, message="gpt-1-1 ended with exit code 1"), running()),
        (replace(FAILED, reason="NodeLost"), running()),
        (FAILED, running(made_again())),
    ],
    ids=["attempt", "message", "reason", "run"],
)
async def test_an_event_that_says_something_else_is_recorded_beside_the_first(
    server: NodeServer, executor: Executor, later: RecordEvent, observed: Observation
) -> None:
    await executor.do(FAILED, running())
    await executor.do(later, observed)

    assert len(server.recorded) == 2


async def test_an_event_that_is_told_again_is_recorded_once(server: NodeServer, executor: Executor) -> None:
    await executor.do(FAILED, running())
    await executor.do(FAILED, running(now=NOW + timedelta(minutes=1)))

    assert len(server.recorded) == 1


# ---- events of others


async def test_events_of_one_object_are_asked_for(server: NodeServer, executor: Executor) -> None:
    found = await executor.events_of("team", "Pod", "gpt-1-0-x")

    assert found == server.events
    assert server.asked == ["involvedObject.kind=Pod,involvedObject.name=gpt-1-0-x"]


async def test_an_operator_that_may_not_read_events_goes_on_without(server: NodeServer, executor: Executor) -> None:
    """As under the roles of an earlier chart."""
    server.events_status = 403

    assert await executor.events_of("team", "Job", "gpt-1") == []
